#include <CivetServer.h>
#include <netdb.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "io/metrics/listen_address.h"
#include "io/metrics/sinks.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

ListenAddress checked_listen(const std::string& listen) {
  const std::optional<ListenAddress> address = parse_listen_address(listen);
  if (!address)
    throw base::spec_error("metrics.listen: \"" + listen +
                           "\" is not a numeric address and a port from 0 to 65535; give one, such as "
                           "127.0.0.1:9464 or 127.0.0.1:0");
  return *address;
}

// Idle connections hold a thread of the server each until its time is up.
constexpr const char* kServerThreads = "16";
constexpr const char* kRequestMilliseconds = "1000";
// A node has no more array tasks than this, as a rule; then any free port does.
constexpr int kPortsNearby = 128;

struct Resolved {
  addrinfo* list = nullptr;
  explicit Resolved(const ListenAddress& address) {
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
  ~Resolved() {
    if (list != nullptr) ::freeaddrinfo(list);
  }
  Resolved(const Resolved&) = delete;
  Resolved& operator=(const Resolved&) = delete;
};

// The server's library does not tell a taken port from an address that is not this machine's. 0 or an errno
// value.
int bind_error(const ListenAddress& address) {
  const Resolved to(address);
  if (to.list == nullptr) return EADDRNOTAVAIL;
  const base::UniqueFd fd(::socket(to.list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return errno;
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd.get(), to.list->ai_addr, to.list->ai_addrlen) != 0 || ::listen(fd.get(), 1) != 0)
    return errno;
  return 0;
}

// On the port asked for, or the next that is free; `address` gets what was bound.
std::unique_ptr<prometheus::Exposer> listen_near(ListenAddress& address, const std::string& asked) {
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
    try {
      auto exposer = std::make_unique<prometheus::Exposer>(
          std::vector<std::string>{"listening_ports", address.text(), "num_threads", kServerThreads,
                                   "request_timeout_ms", kRequestMilliseconds});
      const std::vector<int> bound = exposer->GetListeningPorts();
      if (!bound.empty()) address.port = std::to_string(bound.front());
      return exposer;
    } catch (const CivetException&) {
      // Another process took it in between.
    }
  }
  throw base::spec_error("metrics.listen: no port is free on " + address.host +
                         ": set metrics: {listen: off}");
}

// civetweb looks at its stop flag every two seconds only, or when a client connects.
void wake_listener(const ListenAddress& address) {
  const Resolved to(address);
  if (to.list == nullptr) return;
  const base::UniqueFd fd(::socket(to.list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd) (void)!::connect(fd.get(), to.list->ai_addr, to.list->ai_addrlen);
}

}  // namespace

struct PrometheusSink::State {
  ListenAddress address;
  bool moved = false;
  std::unique_ptr<prometheus::Exposer> exposer;
};

PrometheusSink::PrometheusSink(const MetricsOptions& options)
    : RunMetrics(options.powercap), state_(std::make_unique<State>()) {
  ListenAddress& address = state_->address;
  address = checked_listen(options.listen);
  const std::string port = address.port;
  state_->exposer = listen_near(address, options.listen);
  state_->moved = port != "0" && port != address.port;
  also_at("/metrics");
}

PrometheusSink::~PrometheusSink() {
  // Stopping waits for the listener; something has to connect meanwhile.
  std::jthread waker([&address = state_->address](const std::stop_token& stopped) {
    while (!stopped.stop_requested()) {
      wake_listener(address);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  state_->exposer.reset();
}

void PrometheusSink::also_at(const std::string& path) {
  for (const auto& metrics : collectables()) state_->exposer->RegisterCollectable(metrics, path);
}

std::string PrometheusSink::address() const { return state_->address.text(); }
bool PrometheusSink::moved() const { return state_->moved; }

}  // namespace trainerd::io
