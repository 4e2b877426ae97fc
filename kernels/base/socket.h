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

  /// "host:port", with an IPv6 address in brackets.
  std::string text() const;
};

/// Parses "host:port" with a port of 1 to 65535 and an IPv6 address in brackets. None for anything else.
std::optional<Endpoint> parse_endpoint(const std::string& text);

/// Opens a non-blocking socket that listens on `at.port` of this machine's address for `at.host`, or of
/// loopback if `at.host` is a loopback address. It listens on every interface if `at.host` has no address of
/// this machine (a container, a translated address), if it is a name of several of its addresses, or if it is
/// a name for loopback, which must mean another address on other nodes. Port 0: any free port (see
/// `local_port`). Throws CommError.
UniqueFd listen_at(const Endpoint& at);
std::uint16_t local_port(int fd);
/// Address at which processes on this machine reach a listening socket.
std::string reachable_here(int listener);

/// Makes one attempt. Returns an empty descriptor and sets `why` if nothing answers within `seconds`. Throws
/// CommError if the name is unknown, because further attempts would not help.
UniqueFd try_connect(const Endpoint& to, double seconds, std::string& why);

/// True if a host of this name or numeric address is known, or if the lookup fails temporarily.
bool is_known_host(const std::string& host);

/// The numeric address of one of this machine's network interfaces. `name` is the interface's name ("ib0"), a
/// host name or an address. Throws CommError if no interface has such an address.
std::string own_address(const std::string& name);
/// The name of that interface; empty if no interface has exactly that address (as with 127.0.1.1).
std::string interface_name(const std::string& name);

/// Numeric addresses of a connection's two ends.
std::string local_address(int fd);
std::string peer_address(int fd);
bool is_loopback(const std::string& address);

/// For a connection whose end means that the peer is dead. A host that vanished without closing the
/// connection is detected within about 20 s, small messages are sent at once, and no read or write blocks
/// longer than `seconds`.
void watch_peer(int fd, double seconds);

}  // namespace trainerd::base
