#pragma once

#include <optional>
#include <string>

namespace trainerd::io {

/// Address on which a server listens.
struct ListenAddress {
  std::string host;  ///< numeric; IPv6 in brackets
  std::string port;  ///< 0 to 65535; 0: any free one

  std::string text() const { return host + ":" + port; }
};

/// Parses "host:port": an IPv4 address, an IPv6 address in brackets, or localhost, and a port from 0 to
/// 65535. None for anything else; names are not looked up.
std::optional<ListenAddress> parse_listen_address(const std::string& text);

}  // namespace trainerd::io
