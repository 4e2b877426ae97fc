#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <charconv>
#include <deque>
#include <list>
#include <map>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "parallel/comm/rendezvous/store_frames.h"
#include "parallel/comm/rendezvous/tcp_store.h"

namespace trainerd::parallel {
namespace {

std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

base::UniqueFd make_event() {
  base::UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
  if (!event) throw base::device_error("cannot make an eventfd: " + base::errno_text(errno));
  return event;
}

void raise(int event) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(event, &one, sizeof(one));
}

// Longest message of a connection without proof: the greeting and a challenge.
constexpr std::size_t kStrangerBytes = 5 + frames::kGreeting.size() + JobToken::kNonceBytes;
// The first refusals are all logged, later ones each time their count has doubled.
constexpr std::int64_t kMaxLoggedOneByOne = 32;
// A connection without proof may be closed for a new one after this many seconds, if there are too many of
// them or no descriptors left.
constexpr double kPatienceWithStrangers = 1;
constexpr std::ptrdiff_t kManyStrangers = 1024;

struct Connection {
  base::UniqueFd socket;
  double greeting_deadline = 0;
  bool admitted = false;                             ///< has proved that it has the token
  std::string client_nonce = {}, server_nonce = {};  ///< set once it has sent the greeting
  std::string in, out;
  std::optional<std::string> waits_for = {};  ///< the key it waits for
  double wait_deadline = 0;
};

}  // namespace

struct StoreServer::State {
  explicit State(JobToken t) : token(std::move(t)) {}
  void serve();
  int next_timeout() const;
  void accept_all();
  bool read(Connection& c);
  bool handle(Connection& c);
  void make_room();
  bool admit(Connection& c, const frames::Request& request);
  bool answer(Connection& c, const frames::Request& request);
  bool answer_value(Connection& c, std::string_view key, bool wait, std::string_view milliseconds);
  bool put(std::string_view key, std::string value);
  void change(Connection& c, std::string_view key, std::string value, const std::string& done);
  bool flush(Connection& c) const;
  bool expired(Connection& c);
  void hand_over(Connection& c, std::string text);
  bool refuse(const Connection& c, const std::string& why);

  JobToken token;
  std::function<void(const std::string&)> log;
  StoreLimits limits;
  base::UniqueFd listener, stop_event = make_event(), joined_event = make_event();
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> refused{0};
  std::map<std::string, std::string, std::less<>> values;
  std::size_t stored = 0;
  std::list<Connection> connections;
  double accept_again = 0;  ///< time to accept again, after there were no descriptors left; 0: accept now
  std::mutex mutex;         ///< protects `joined`
  std::deque<Joined> joined;
  std::thread thread;
};

bool StoreServer::State::refuse(const Connection& c, const std::string& why) {
  const std::int64_t count = ++refused;
  if (count <= kMaxLoggedOneByOne || std::has_single_bit(static_cast<std::uint64_t>(count)))
    log("the rendezvous dropped a connection from " + base::peer_address(c.socket.get()) + ": " + why +
        (count < kMaxLoggedOneByOne
             ? ""
             : " (" + std::to_string(count) +
                   " were dropped; the next one is logged when the number has doubled)"));
  return false;
}

/// Closes old connections without proof, so that they cannot use up the descriptors the job needs.
void StoreServer::State::make_room() {
  const double old = base::monotonic_seconds() + limits.greeting_seconds - kPatienceWithStrangers;
  std::erase_if(connections, [&](const Connection& c) {
    return !c.admitted && c.greeting_deadline < old &&
           !refuse(c, "it had not authenticated while others waited");
  });
}

void StoreServer::State::accept_all() {
  if (std::count_if(connections.begin(), connections.end(), [](const Connection& c) { return !c.admitted; }) >
      kManyStrangers)
    make_room();
  for (;;) {
    base::UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE) {
        accept_again = base::monotonic_seconds() + 0.1;
        make_room();
      }
      return;
    }
    base::watch_peer(socket.get(), 30);
    const double deadline = base::monotonic_seconds() + limits.greeting_seconds;
    connections.push_back({.socket = std::move(socket), .greeting_deadline = deadline, .in = {}, .out = {}});
  }
}

/// Returns true if the connection stays open; so do all functions below that return bool.
bool StoreServer::State::read(Connection& c) {
  std::array<char, 65536> bytes;
  const ssize_t n = ::recv(c.socket.get(), bytes.data(), bytes.size(), 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) {
    // A client with another token leaves when it sees the server's proof.
    if (!c.admitted && !c.server_nonce.empty())
      refuse(c, "it left the exchange of proofs, as a node with another token does");
    return false;
  }
  c.in.append(bytes.data(), static_cast<std::size_t>(n));
  return true;
}

bool StoreServer::State::handle(Connection& c) {
  std::size_t at = 0;
  // A client makes one request at a time. Data that arrives while it waits is kept, up to a limit.
  while (c.in.size() - at >= 4 && !c.waits_for && c.socket) {
    const std::string_view rest = std::string_view(c.in).substr(at);
    const std::size_t length = frames::read_length(rest);
    // A connection without proof may not make the server allocate memory.
    if (length > (c.admitted ? limits.frame_bytes : kStrangerBytes))
      return refuse(c, "a message of " + std::to_string(length) + " bytes, more than is allowed");
    if (rest.size() < 4 + length) break;
    const auto request = frames::parse_request(rest.substr(4, length));
    if (!request) return refuse(c, "a message that is none");
    at += 4 + length;
    if (request->what == frames::kJoin && at < c.in.size()) return refuse(c, "more after its last message");
    if (!(c.admitted ? answer(c, *request) : admit(c, *request))) return false;
  }
  c.in.erase(0, at);
  if (c.in.size() > (c.admitted ? limits.frame_bytes : kStrangerBytes) + 4)
    return refuse(c, "it asks on without waiting for answers");
  return flush(c);
}

/// Handles the messages of a connection without proof: the greeting, then its proof. Every challenge is new,
/// so a recorded proof is useless.
bool StoreServer::State::admit(Connection& c, const frames::Request& request) {
  if (c.server_nonce.empty()) {
    if (request.what != frames::kGreet || !request.value.starts_with(frames::kGreeting) ||
        request.value.size() != frames::kGreeting.size() + JobToken::kNonceBytes)
      return refuse(c, "it is no client of this store");
    c.client_nonce = request.value.substr(frames::kGreeting.size());
    c.server_nonce = random_bytes(JobToken::kNonceBytes);
    c.out += frames::answer(frames::kChallenge, c.server_nonce + token.proof(JobToken::Side::server,
                                                                             c.client_nonce, c.server_nonce));
    return true;
  }
  if (request.what != frames::kProve ||
      !same_bytes(request.value, token.proof(JobToken::Side::client, c.client_nonce, c.server_nonce)))
    return refuse(c, "it does not have the job's token");
  c.admitted = true;
  c.out += frames::answer(frames::kDone);
  return true;
}

bool StoreServer::State::answer(Connection& c, const frames::Request& request) {
  switch (request.what) {
    case frames::kSet:
      change(c, request.key, std::string(request.value), frames::answer(frames::kDone));
      return true;
    case frames::kGet: return answer_value(c, request.key, false, {});
    case frames::kWait: return answer_value(c, request.key, true, request.value);
    case frames::kAdd: {
      const auto found = values.find(request.key);
      const auto amount = number_in(request.value);
      const auto before = found == values.end() ? std::int64_t{0} : number_in(found->second);
      std::int64_t sum = 0;
      if (!amount) return refuse(c, "an addition of no number");
      if (!before || __builtin_add_overflow(*before, *amount, &sum)) {
        c.out += frames::answer(frames::kError,
                                "the value under " + std::string(request.key) + " cannot be added to");
        return true;
      }
      change(c, request.key, std::to_string(sum), frames::answer(frames::kValue, std::to_string(sum)));
      return true;
    }
    case frames::kJoin: hand_over(c, std::string(request.value)); return true;
    default: return refuse(c, "a request of no known kind");
  }
}

bool StoreServer::State::answer_value(Connection& c, std::string_view key, bool wait,
                                      std::string_view milliseconds) {
  if (const auto found = values.find(key); found != values.end()) {
    c.out += frames::answer(frames::kValue, found->second);
    return true;
  }
  if (!wait) {
    c.out += frames::answer(frames::kNothing);
    return true;
  }
  const auto left = number_in(milliseconds);
  if (!left || *left < 0) return refuse(c, "a wait of no length");
  c.waits_for = std::string(key);
  c.wait_deadline = base::monotonic_seconds() + 1e-3 * static_cast<double>(*left);
  return true;
}

/// Sets a value and answers the clients that wait for it. False if the store is full.
bool StoreServer::State::put(std::string_view key, std::string value) {
  const auto found = values.find(key);
  const std::size_t before = found == values.end() ? 0 : key.size() + found->second.size();
  const std::size_t after = stored - before + key.size() + value.size();
  if (after > limits.stored_bytes) return false;
  stored = after;
  for (Connection& other : connections) {
    if (other.waits_for != key) continue;
    other.waits_for.reset();
    other.out += frames::answer(frames::kValue, value);
  }
  if (found == values.end()) values.emplace(key, std::move(value));
  else found->second = std::move(value);
  return true;
}

void StoreServer::State::change(Connection& c, std::string_view key, std::string value,
                                const std::string& done) {
  c.out += put(key, std::move(value)) ? done : frames::answer(frames::kError, "the store is full");
}

bool StoreServer::State::flush(Connection& c) const {
  while (!c.out.empty() && c.socket) {
    const ssize_t n = ::send(c.socket.get(), c.out.data(), c.out.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    c.out.erase(0, static_cast<std::size_t>(n));
  }
  return true;
}

bool StoreServer::State::expired(Connection& c) {
  const double now = base::monotonic_seconds();
  if (!c.admitted && now > c.greeting_deadline) return refuse(c, "it did not authenticate in time");
  if (c.waits_for && now >= c.wait_deadline) {
    c.waits_for.reset();
    c.out += frames::answer(frames::kNothing);
    return handle(c);
  }
  return true;
}

void StoreServer::State::hand_over(Connection& c, std::string text) {
  c.out += frames::answer(frames::kDone);
  if (!flush(c) || !c.out.empty()) return;
  ::fcntl(c.socket.get(), F_SETFL, ::fcntl(c.socket.get(), F_GETFL) & ~O_NONBLOCK);
  {
    const std::lock_guard lock(mutex);
    joined.push_back({std::move(c.socket), std::move(text)});
  }
  raise(joined_event.get());
}

/// Milliseconds until the next deadline; -1: there is none.
int StoreServer::State::next_timeout() const {
  double due = accept_again > 0 ? accept_again : 1e300;
  for (const Connection& c : connections) {
    if (!c.admitted) due = std::min(due, c.greeting_deadline);
    if (c.waits_for) due = std::min(due, c.wait_deadline);
  }
  if (due >= 1e300) return -1;
  return static_cast<int>(std::clamp(1e3 * (due - base::monotonic_seconds()) + 1, 0.0, 1e6));
}

void StoreServer::State::serve() {
  std::vector<pollfd> fds;
  while (!stop) {
    if (accept_again > 0 && base::monotonic_seconds() > accept_again) accept_again = 0;
    fds.assign({{stop_event.get(), POLLIN, 0}, {accept_again > 0 ? -1 : listener.get(), POLLIN, 0}});
    for (const Connection& c : connections)
      fds.push_back({c.socket.get(), static_cast<short>(c.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    if (::poll(fds.data(), fds.size(), next_timeout()) < 0) continue;
    std::size_t i = 2;
    for (auto c = connections.begin(); c != connections.end(); ++i) {
      const short events = fds[i].revents;
      bool lives = (events & (POLLIN | POLLHUP | POLLERR)) == 0 || (read(*c) && handle(*c));
      lives = lives && c->socket && flush(*c) && expired(*c);
      c = lives ? std::next(c) : connections.erase(c);
    }
    // New connections last: `fds` does not include them.
    if (fds[1].revents != 0) accept_all();
  }
}

StoreServer::StoreServer(base::UniqueFd listener, JobToken token, std::function<void(const std::string&)> log,
                         const StoreLimits& limits)
    : state_(std::make_unique<State>(std::move(token))) {
  state_->log = std::move(log);
  state_->limits = limits;
  state_->listener = std::move(listener);
  state_->thread = std::thread([state = state_.get()] { state->serve(); });
}

StoreServer::~StoreServer() {
  state_->stop = true;
  raise(state_->stop_event.get());
  state_->thread.join();
}

std::uint16_t StoreServer::port() const { return base::local_port(state_->listener.get()); }

base::Endpoint StoreServer::local_endpoint() const {
  return {base::reachable_here(state_->listener.get()), port()};
}

std::int64_t StoreServer::refused() const { return state_->refused; }

std::optional<StoreServer::Joined> StoreServer::take_joined() {
  const std::lock_guard lock(state_->mutex);
  if (state_->joined.empty()) return std::nullopt;
  std::uint64_t one = 0;
  [[maybe_unused]] const ssize_t n = ::read(state_->joined_event.get(), &one, sizeof(one));
  Joined joined = std::move(state_->joined.front());
  state_->joined.pop_front();
  return joined;
}

int StoreServer::event_fd() const { return state_->joined_event.get(); }

}  // namespace trainerd::parallel
