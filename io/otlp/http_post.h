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

/// The port is required. None for any other text, including https.
std::optional<HttpUrl> parse_http_url(const std::string& text);

struct PostReply {
  int status = 0;
  std::string body;  ///< empty if it came in chunks
};

/// Sends one request on its own connection. Returns none and sets `why` unless a complete reply arrives
/// within `seconds` after connecting. Connecting may take `seconds` too. The DNS lookup is not limited.
std::optional<PostReply> http_post(const HttpUrl& url, std::string_view content_type, std::string_view body,
                                   double seconds, std::string& why);

}  // namespace trainerd::io
