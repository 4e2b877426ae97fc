#include "io/http/listen_address.h"

#include <arpa/inet.h>

#include <array>
#include <charconv>

namespace trainerd::io {
namespace {

bool is_port(const std::string& text) {
  unsigned port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port <= 65535;
}

// Stops lists, options and scopes, which a server library might accept in place of an address.
bool is_numeric_host(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  if (::inet_pton(AF_INET, host.c_str(), bytes.data()) == 1) return true;
  if (host.size() < 2 || host.front() != '[' || host.back() != ']') return false;
  return ::inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), bytes.data()) == 1;
}

}  // namespace

std::optional<ListenAddress> parse_listen_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || text.find('\0') != std::string::npos) return std::nullopt;
  ListenAddress address{text.substr(0, colon), text.substr(colon + 1)};
  if (address.host == "localhost") address.host = "127.0.0.1";
  if (!is_port(address.port) || !is_numeric_host(address.host)) return std::nullopt;
  return address;
}

}  // namespace trainerd::io
