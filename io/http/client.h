#pragma once

#include <string>

namespace trainerd::io {

/// Address of a server as entered by a user.
struct HttpAddress {
  std::string host;  ///< a name or an address; IPv6 without brackets
  std::string port;
  std::string text() const;  ///< "http://host:port"
};

/// Parses "http://host:port", with or without a path (ignored), or "host:port". The default port is 9464.
/// Throws SpecError for anything else.
HttpAddress parse_http_address(const std::string& url);

/// Returns the body of a GET of `path`. `seconds` bounds the whole exchange. Throws CommError with the
/// reason: no answer, a status other than 200, a truncated reply or one longer than 16 MiB.
std::string http_get(const HttpAddress& address, const std::string& path, double seconds);

}  // namespace trainerd::io
