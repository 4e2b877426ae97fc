#include "kernels/base/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::base {
namespace {

constexpr int kBacklog = 1024;

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// Null, with `why`, if the name cannot be looked up at present. Throws CommError if the name is unknown.
Addresses look_up(const Endpoint& endpoint, std::string& why) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  const int rc = ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  Addresses addresses(found, &::freeaddrinfo);
  if (rc == 0) return addresses;
  why = rc == EAI_SYSTEM ? errno_text(errno) : ::gai_strerror(rc);
  if (rc != EAI_AGAIN && rc != EAI_SYSTEM)
    throw comm_error("host " + endpoint.host + " is not known here (" + why +
                     "); give a name or address that is");
  return {nullptr, &::freeaddrinfo};
}

std::string numeric(const sockaddr* address, socklen_t bytes) {
  std::array<char, NI_MAXHOST> host{};
  const int rc = ::getnameinfo(address, bytes, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return rc == 0 ? host.data() : "?";
}

template <class Ask>
std::string address_of(int fd, const Ask& ask) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (ask(fd, address, &bytes) != 0) return "?";
  const std::string text = numeric(address, bytes);
  constexpr std::string_view kMapped = "::ffff:";  // IPv4 address on a socket of both families
  return text.starts_with(kMapped) ? text.substr(kMapped.size()) : text;
}

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof(value));
}

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};

Address v4(std::uint16_t port, in_addr_t host) {
  Address address;
  auto& in = reinterpret_cast<sockaddr_in&>(address.bytes);
  in.sin_family = AF_INET;
  in.sin_port = htons(port);
  in.sin_addr.s_addr = htonl(host);
  address.size = sizeof(in);
  return address;
}

Address v6(std::uint16_t port, const in6_addr& host) {
  Address address;
  auto& in = reinterpret_cast<sockaddr_in6&>(address.bytes);
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(port);
  in.sin6_addr = host;
  address.size = sizeof(in);
  return address;
}

/// A socket bound to that address. On failure an empty descriptor, and errno.
UniqueFd bound_to(const sockaddr* address, socklen_t bytes) {
  UniqueFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fd;
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address->sa_family == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(fd.get(), address, bytes) == 0) return fd;
  const int error = errno;
  fd = UniqueFd();
  errno = error;
  return fd;
}

UniqueFd bound_to(const Address& address) {
  return bound_to(reinterpret_cast<const sockaddr*>(&address.bytes), address.size);
}

bool means_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24) == 127;
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

/// A socket bound to this machine's address for the host. EADDRNOTAVAIL if the host has no address of this
/// machine, or several, because other nodes may use any of them.
UniqueFd bound_to_own(const Endpoint& at) {
  UniqueFd own;
  int error = EADDRNOTAVAIL;
  std::string address;
  try {
    std::string why;
    const Addresses addresses = look_up(at, why);
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      const std::string text = numeric(a->ai_addr, a->ai_addrlen);
      if (means_loopback(a->ai_addr) || text == address) continue;
      UniqueFd fd = bound_to(a->ai_addr, a->ai_addrlen);
      if (!fd && (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT)) continue;
      if (!address.empty()) {
        own = UniqueFd();
        error = EADDRNOTAVAIL;
        break;
      }
      error = fd ? 0 : errno;
      address = text;
      own = std::move(fd);
    }
  } catch (const CommError&) {  // a name that only other nodes know
  }
  errno = error;
  return own;
}

/// True if connected; otherwise sets errno.
bool connect_within(int fd, const sockaddr* address, socklen_t bytes, double deadline) {
  if (::connect(fd, address, bytes) == 0) return true;
  if (errno != EINPROGRESS) return false;
  for (;;) {
    pollfd p{fd, POLLOUT, 0};
    const int milliseconds = static_cast<int>(std::max(0.0, 1e3 * (deadline - monotonic_seconds())));
    const int n = ::poll(&p, 1, milliseconds);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      errno = n == 0 ? ETIMEDOUT : errno;
      return false;
    }
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    errno = error;
    return error == 0;
  }
}

}  // namespace

std::string Endpoint::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::optional<Endpoint> parse_endpoint(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  Endpoint endpoint{text.substr(0, colon), 0};
  std::string& host = endpoint.host;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const auto allowed = [&](char c) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    return word || c == '.' || c == '-' || c == '_' || (bracketed && (c == ':' || c == '%'));
  };
  if (bracketed && host.find(':') == std::string::npos) return std::nullopt;
  if (host.empty() || !std::all_of(host.begin(), host.end(), allowed)) return std::nullopt;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + colon + 1, last, endpoint.port);
  if (error != std::errc() || end != last || endpoint.port == 0) return std::nullopt;
  return endpoint;
}

bool is_loopback(const std::string& address) { return address == "127.0.0.1" || address == "::1"; }

UniqueFd listen_at(const Endpoint& at) {
  UniqueFd fd;
  if (at.host == "127.0.0.1" || at.host == "localhost") fd = bound_to(v4(at.port, INADDR_LOOPBACK));
  else if (at.host == "::1") fd = bound_to(v6(at.port, in6addr_loopback));
  else fd = bound_to_own(at);
  // An IPv6 socket serves both families, if the kernel supports IPv6.
  if (!fd && errno == EADDRNOTAVAIL && at.host != "::1") {
    fd = bound_to(v6(at.port, in6addr_any));
    if (!fd && (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT)) fd = bound_to(v4(at.port, INADDR_ANY));
  }
  if (!fd || ::listen(fd.get(), kBacklog) != 0)
    throw comm_error("cannot listen on port " + std::to_string(at.port) + ": " + errno_text(errno) +
                     "; choose another port for the rendezvous");
  return fd;
}

std::string reachable_here(int listener) {
  const std::string address = local_address(listener);
  return address == "::" || address == "0.0.0.0" ? "127.0.0.1" : address;
}

std::uint16_t local_port(int fd) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0)
    throw comm_error("a socket has no address: " + errno_text(errno));
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

UniqueFd try_connect(const Endpoint& to, double seconds, std::string& why) {
  const double deadline = monotonic_seconds() + seconds;
  const Addresses addresses = look_up(to, why);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    UniqueFd fd(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd && connect_within(fd.get(), a->ai_addr, a->ai_addrlen, deadline)) {
      ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
      return fd;
    }
    why = numeric(a->ai_addr, a->ai_addrlen) + ": " + errno_text(errno);
  }
  return UniqueFd();
}

bool is_known_host(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int rc = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  const Addresses addresses(found, &::freeaddrinfo);
  return rc == 0 || rc == EAI_AGAIN || rc == EAI_SYSTEM;
}

namespace {

CommError no_interface(const std::string& name, const std::string& why) {
  return comm_error("cannot communicate from " + name + " (" + why +
                    "); give the name or an address of a network interface of this machine");
}

/// An interface and one of its addresses.
struct InterfaceAddress {
  std::string name, address;
};

/// The interfaces of this machine, IPv4 first. Errors mention `asked`.
std::vector<InterfaceAddress> interface_addresses(const std::string& asked) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) throw no_interface(asked, errno_text(errno));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> interfaces(found, &::freeifaddrs);
  std::vector<InterfaceAddress> result;
  for (const int family : {AF_INET, AF_INET6})
    for (const ifaddrs* i = found; i != nullptr; i = i->ifa_next)
      if (i->ifa_addr != nullptr && i->ifa_addr->sa_family == family)
        result.push_back({i->ifa_name, numeric(i->ifa_addr, family == AF_INET ? sizeof(sockaddr_in)
                                                                              : sizeof(sockaddr_in6))});
  return result;
}

}  // namespace

std::string own_address(const std::string& name) {
  const auto none = [&](const std::string& why) { return no_interface(name, why); };
  for (const InterfaceAddress& i : interface_addresses(name))
    if (i.name == name) return i.address;
  std::string why = "it has no address";
  const Addresses addresses = look_up({name, 0}, why);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    const UniqueFd fd(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd && ::bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0) return numeric(a->ai_addr, a->ai_addrlen);
    why = numeric(a->ai_addr, a->ai_addrlen) + ": " + errno_text(errno);
  }
  throw none(why);
}

std::string interface_name(const std::string& name) {
  const std::string address = own_address(name);
  for (const InterfaceAddress& i : interface_addresses(name))
    if (i.name == name || i.address == address) return i.name;
  return "";
}

std::string local_address(int fd) { return address_of(fd, ::getsockname); }
std::string peer_address(int fd) { return address_of(fd, ::getpeername); }

void watch_peer(int fd, double seconds) {
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 20'000);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  const auto whole = static_cast<time_t>(seconds);
  const timeval limit{whole, static_cast<suseconds_t>(1e6 * (seconds - static_cast<double>(whole)))};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

}  // namespace trainerd::base
