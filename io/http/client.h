#pragma once

#include <string>

namespace trainerd::io {

/// Where a server listens, as a person writes it.
struct HttpAddress {
  std::string host;  ///< a name or an address; an IPv6 one without its brackets
  std::string port;
  std::string text() const;  ///< "http://host:port"
};

/// Reads "http://host:port", with or without a path, which does not matter, and "host:port" alike; without a
/// port it is 9464. Throws SpecError for anything else.
HttpAddress parse_http_address(const std::string& url);

/// The body of the reply to a GET of `path`, within `seconds` in all. Throws CommError, which says what is
/// wrong: nothing answers, another status than 200, a reply that is cut or longer than 16 MiB.
std::string http_get(const HttpAddress& address, const std::string& path, double seconds);

}  // namespace trainerd::io
