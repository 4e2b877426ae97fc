#include "io/http/client.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kMaxReplyBytes = std::size_t{16} << 20;
constexpr const char* kDefaultPort = "9464";  // default of metrics.listen

/// One request and its reply, with a common deadline.
class Exchange {
 public:
  Exchange(const HttpAddress& address, double seconds)
      : address_(address), deadline_(base::monotonic_seconds() + seconds) {}

  std::string run(const std::string& path) {
    connect();
    send("GET " + path + " HTTP/1.0\r\nHost: " + address_.text().substr(7) +
         "\r\nAccept: */*\r\nConnection: close\r\n\r\n");
    return body_of(receive());
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw base::comm_error(address_.text() + ": " + why);
  }

  void wait(short events) const {
    const double left = deadline_ - base::monotonic_seconds();
    pollfd ready{fd_.get(), events, 0};
    const int timeout = static_cast<int>(std::max(0.0, 1000 * left)) + 1;
    const int count = left <= 0 ? 0 : ::poll(&ready, 1, timeout);
    if (count == 0) fail("no answer in time");
    if (count < 0 && errno != EINTR) fail(base::errno_text(errno));
  }

  void connect() {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int problem = ::getaddrinfo(address_.host.c_str(), address_.port.c_str(), &hints, &found);
    if (problem != 0) fail(std::string("the host is not found: ") + ::gai_strerror(problem));
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(found, ::freeaddrinfo);
    int error = 0;
    for (const addrinfo* to = list.get(); to != nullptr; to = to->ai_next) {
      fd_ = base::UniqueFd(::socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!fd_) fail(base::errno_text(errno));
      error = ::connect(fd_.get(), to->ai_addr, to->ai_addrlen) == 0 ? 0 : errno;
      if (error == EINPROGRESS) {
        wait(POLLOUT);
        socklen_t size = sizeof(error);
        if (::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
      }
      if (error == 0) return;
    }
    fail("nothing answers: " + base::errno_text(error));
  }

  void send(const std::string& text) const {
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t n = ::send(fd_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n >= 0) sent += static_cast<std::size_t>(n);
      else if (errno == EAGAIN) wait(POLLOUT);
      else if (errno != EINTR) fail(base::errno_text(errno));
    }
  }

  std::string receive() const {
    std::string reply;
    std::array<char, 16384> part{};
    for (;;) {
      const ssize_t n = ::read(fd_.get(), part.data(), part.size());
      if (n == 0) return reply;
      if (n > 0) reply.append(part.data(), static_cast<std::size_t>(n));
      else if (errno == EAGAIN) wait(POLLIN);
      else if (errno != EINTR) fail(base::errno_text(errno));
      if (reply.size() > kMaxReplyBytes) fail("the reply is too long to be a run's");
    }
  }

  std::string body_of(const std::string& reply) const {
    const std::size_t end = reply.find("\r\n\r\n");
    if (!reply.starts_with("HTTP/1.") || reply.size() < 12 || end == std::string::npos)
      fail("what answers there is no web server");
    const std::string status = reply.substr(9, 3);
    if (status != "200") fail("what answers there has no such page (status " + status + ")");
    std::string body = reply.substr(end + 4);
    constexpr std::string_view kLength = "\r\nContent-Length: ";
    if (const std::size_t at = reply.find(kLength); at < end) {
      std::size_t length = 0;
      std::from_chars(reply.data() + at + kLength.size(), reply.data() + end, length);
      if (body.size() < length) fail("the reply was cut");
    }
    return body;
  }

  const HttpAddress& address_;
  double deadline_;
  base::UniqueFd fd_;
};

}  // namespace

std::string HttpAddress::text() const {
  return "http://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

HttpAddress parse_http_address(const std::string& url) {
  const auto wrong = [&url](const std::string& why) {
    return base::spec_error("\"" + url + "\" is no address of a run's metrics" + why +
                            "; give one such as http://127.0.0.1:9464");
  };
  if (!url.starts_with("http://") && url.find("://") != std::string::npos)
    throw wrong(": metrics are served by http");
  std::string rest = url.starts_with("http://") ? url.substr(7) : url;
  rest.resize(std::min(rest.find_first_of("/?#"), rest.size()));
  HttpAddress address{.host = rest, .port = kDefaultPort};
  const std::size_t bracket = rest.rfind(']'), colon = rest.rfind(':');
  if (colon != std::string::npos && (bracket == std::string::npos || colon > bracket)) {
    address.host = rest.substr(0, colon);
    address.port = rest.substr(colon + 1);
  }
  if (address.host.starts_with('[') && address.host.ends_with(']'))
    address.host = address.host.substr(1, address.host.size() - 2);
  unsigned port = 0;
  const auto [end, error] =
      std::from_chars(address.port.data(), address.port.data() + address.port.size(), port);
  const bool is_port = error == std::errc() && end == address.port.data() + address.port.size();
  if (!is_port || port == 0 || port > 65535) throw wrong(": its port is not one of 1 to 65535");
  if (address.host.empty() || address.host.find_first_of(" \t\r\n@[]") != std::string::npos) throw wrong("");
  return address;
}

std::string http_get(const HttpAddress& address, const std::string& path, double seconds) {
  return Exchange(address, seconds).run(path);
}

}  // namespace trainerd::io
