#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/base/fd.h"

namespace trainerd::base {

/// A host's name or numeric address (IPv6 without brackets) and a port.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  /// "host:port", an IPv6 address in brackets.
  std::string text() const;
};

/// Reads "host:port" with a port of 1 to 65535; an IPv6 address stands in brackets. None for anything else.
std::optional<Endpoint> parse_endpoint(const std::string& text);

/// A non-blocking socket that listens on `at.port` of the address of this machine that `at.host` is or names:
/// of loopback for a loopback address. Of every interface where `at.host` is none of this machine's
/// addresses, by which other nodes know it all the same (a container, a translated address), or is a name
/// that means several of them, or loopback, which must mean another address elsewhere. Port 0: any free one
/// (see `local_port`). Throws CommError.
UniqueFd listen_at(const Endpoint& at);
std::uint16_t local_port(int fd);
/// The address by which this machine's own processes reach a socket that listens.
std::string reachable_here(int listener);

/// One attempt. An empty descriptor, and `why`, when nothing answers within `seconds`. Throws CommError when
/// the name is unknown: more attempts would not help.
UniqueFd try_connect(const Endpoint& to, double seconds, std::string& why);

/// Whether the network knows a host by this name or numeric address, or cannot say just now.
bool is_known_host(const std::string& host);

/// The numeric address of one of this machine's network interfaces, by the interface's name ("ib0"), a host
/// name or an address. Throws CommError when it has none such.
std::string own_address(const std::string& name);
/// The name of that interface; empty when none has that very address (as with 127.0.1.1).
std::string interface_name(const std::string& name);

/// Numeric addresses of a connection's two ends.
std::string local_address(int fd);
std::string peer_address(int fd);
bool is_loopback(const std::string& address);

/// For a connection whose end means that the peer is dead. A host that vanished without closing the
/// connection is detected within about 20 s, small messages leave at once, and no read or write blocks
/// longer than `seconds`.
void watch_peer(int fd, double seconds);

}  // namespace trainerd::base
