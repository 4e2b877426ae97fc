#include "io/http/server.h"

#include <civetweb.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "io/http/listen_address.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

// An idle connection occupies a server thread until its timeout. 200 idle connections delay a request by up
// to 2 s.
constexpr const char* kServerThreads = "64";
constexpr const char* kRequestMilliseconds = "500";
// A node rarely has more array tasks than this. Beyond that any free port is used.
constexpr int kPortsNearby = 128;

// Scripts and styles come from the server itself; nothing is loaded from elsewhere.
constexpr const char* kSafetyHeaders =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n";

ListenAddress checked_listen(const std::string& listen) {
  const std::optional<ListenAddress> address = parse_listen_address(listen);
  if (!address)
    throw base::spec_error("metrics.listen: \"" + listen +
                           "\" is not a numeric address and a port from 0 to 65535; give one, such as "
                           "127.0.0.1:9464 or 127.0.0.1:0");
  return *address;
}

struct ResolvedListen {
  addrinfo* list = nullptr;
  explicit ResolvedListen(const ListenAddress& address) {
    const addrinfo hints{.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                         .ai_family = AF_UNSPEC,
                         .ai_socktype = SOCK_STREAM,
                         .ai_protocol = 0,
                         .ai_addrlen = 0,
                         .ai_addr = nullptr,
                         .ai_canonname = nullptr,
                         .ai_next = nullptr};
    std::string host = address.host;
    std::erase_if(host, [](char c) { return c == '[' || c == ']'; });
    if (::getaddrinfo(host.c_str(), address.port.c_str(), &hints, &list) != 0) list = nullptr;
  }
  ~ResolvedListen() {
    if (list != nullptr) ::freeaddrinfo(list);
  }
  ResolvedListen(const ResolvedListen&) = delete;
  ResolvedListen& operator=(const ResolvedListen&) = delete;
};

// Returns 0 or an errno value. Needed because civetweb does not distinguish a port in use from an address of
// another machine.
int bind_error(const ListenAddress& address) {
  const ResolvedListen to(address);
  if (to.list == nullptr) return EADDRNOTAVAIL;
  const base::UniqueFd fd(::socket(to.list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return errno;
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd.get(), to.list->ai_addr, to.list->ai_addrlen) != 0 || ::listen(fd.get(), 1) != 0)
    return errno;
  return 0;
}

// civetweb checks its stop flag only every two seconds, or when a client connects.
void wake_listener(const ListenAddress& address) {
  const ResolvedListen to(address);
  if (to.list == nullptr) return;
  const base::UniqueFd fd(::socket(to.list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd) (void)!::connect(fd.get(), to.list->ai_addr, to.list->ai_addrlen);
}

void reply(mg_connection* connection, const char* status, const HttpReply& page, std::string_view method,
           const char* more_headers = "") {
  std::string text = std::string("HTTP/1.1 ") + status + "\r\nContent-Type: " + page.type +
                     "\r\nContent-Length: " + std::to_string(page.body.size()) + "\r\n" + more_headers +
                     kSafetyHeaders + "\r\n";
  if (method != "HEAD") text += page.body;
  mg_write(connection, text.data(), text.size());
}

}  // namespace

struct HttpServer::State {
  ListenAddress address;
  bool moved = false;
  mutable std::mutex mutex;
  std::map<std::string, Page> pages;  // by path
  mg_context* context = nullptr;

  Page find(const std::string& path) const {
    const std::lock_guard lock(mutex);
    const auto page = pages.find(path);
    return page == pages.end() ? nullptr : page->second;
  }

  // civetweb's callback. Returns the status, which tells civetweb that the request is done.
  static int answer(mg_connection* connection) {
    const auto& state = *static_cast<const State*>(mg_get_user_data(mg_get_context(connection)));
    const mg_request_info& request = *mg_get_request_info(connection);
    const std::string_view method = request.request_method;
    if (method != "GET" && method != "HEAD") {
      reply(connection, "405 Method Not Allowed", {.body = "Only GET and HEAD: nothing is changed here.\n"},
            method, "Allow: GET, HEAD\r\n");
      return 405;
    }
    const Page page = state.find(request.local_uri == nullptr ? "" : request.local_uri);
    if (!page) {
      reply(connection, "404 Not Found", {.body = "There is no such page.\n"}, method);
      return 404;
    }
    try {
      reply(connection, "200 OK", page(), method);
      return 200;
    } catch (const std::exception& error) {
      reply(connection, "500 Internal Server Error", {.body = std::string(error.what()) + "\n"}, method);
      return 500;
    }
  }

  bool start() {
    const std::string where = address.text();
    std::array<const char*, 7> options{
        "listening_ports",    where.c_str(),        "num_threads", kServerThreads,
        "request_timeout_ms", kRequestMilliseconds, nullptr};
    mg_callbacks callbacks{};
    callbacks.begin_request = answer;
    context = mg_start(&callbacks, this, options.data());
    if (context == nullptr) return false;
    mg_server_port port{};
    if (mg_get_server_ports(context, 1, &port) == 1) address.port = std::to_string(port.port);
    return true;
  }

  // Listens on the requested port, or on the next free one.
  void listen_near(const std::string& asked) {
    const int first = std::stoi(address.port);
    std::vector<int> ports;
    for (int port = first; port <= std::min(first + kPortsNearby, 65535) && first > 0; ++port)
      ports.push_back(port);
    ports.push_back(0);
    for (const int port : ports) {
      address.port = std::to_string(port);
      const int error = bind_error(address);
      if (error == EADDRINUSE) continue;
      if (error != 0)
        throw base::spec_error("metrics.listen: cannot listen on " + asked + ": " + base::errno_text(error) +
                               "; give an address of this machine, or metrics: {listen: off}");
      if (start()) return;  // another process took the port in between
    }
    throw base::spec_error("metrics.listen: no port is free on " + address.host +
                           ": set metrics: {listen: off}");
  }
};

HttpServer::HttpServer(const std::string& listen) : state_(std::make_unique<State>()) {
  state_->address = checked_listen(listen);
  const std::string port = state_->address.port;
  state_->listen_near(listen);
  state_->moved = port != "0" && port != state_->address.port;
}

HttpServer::~HttpServer() {
  // mg_stop waits for the listener, so connections must wake it meanwhile.
  std::jthread waker;
  try {
    waker = std::jthread([&address = state_->address](const std::stop_token& stopped) {
      while (!stopped.stop_requested()) {
        wake_listener(address);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
  } catch (const std::system_error&) {  // a limit on threads: the listener wakes by itself within seconds
  }
  mg_stop(state_->context);
}

void HttpServer::serve(const std::string& path, Page page) {
  const std::lock_guard lock(state_->mutex);
  state_->pages[path] = std::move(page);
}

std::string HttpServer::address() const { return state_->address.text(); }
bool HttpServer::moved() const { return state_->moved; }

}  // namespace trainerd::io
