#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/socket.h"

namespace trainerd::io {

/// "http://host:port/path".
struct HttpUrl {
  base::Endpoint to;
  std::string path;  ///< empty, or begins with "/"

  std::string text() const { return "http://" + to.text() + path; }
};

/// The port must be given. None for anything else, https among it.
std::optional<HttpUrl> parse_http_url(const std::string& text);

struct PostReply {
  int status = 0;
  std::string body;  ///< empty where it came in chunks
};

/// One request on a connection of its own. None, and `why`, without a whole reply within `seconds` of the
/// connection, which itself takes as long at most. The lookup of the host's name takes the resolver's time.
std::optional<PostReply> http_post(const HttpUrl& url, std::string_view content_type, std::string_view body,
                                   double seconds, std::string& why);

}  // namespace trainerd::io
