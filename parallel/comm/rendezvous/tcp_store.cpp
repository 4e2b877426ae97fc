#include "parallel/comm/rendezvous/tcp_store.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <sstream>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "parallel/comm/rendezvous/store_frames.h"

namespace trainerd::parallel {
namespace {

// Added to the time the server itself may take, because its machine may be busy.
constexpr double kAnswerSeconds = 30;
constexpr auto kRetryInterval = std::chrono::milliseconds(50);

struct Answer {
  char what = 0;
  std::string value;
};

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

bool receive_exactly(int fd, char* out, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = ::recv(fd, out + done, bytes - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

/// Sends one request and receives its answer; none if the server is gone or is not a store.
std::optional<Answer> converse(int fd, const std::string& request, double seconds) {
  base::watch_peer(fd, seconds);
  char length[4];
  errno = 0;
  if (!send_all(fd, request) || !receive_exactly(fd, length, sizeof(length))) return std::nullopt;
  const std::size_t bytes = frames::read_length({length, sizeof(length)});
  if (bytes < 1 || bytes > StoreLimits{}.frame_bytes) return std::nullopt;
  std::string body(bytes, '\0');
  if (!receive_exactly(fd, body.data(), bytes)) return std::nullopt;
  return Answer{body[0], body.substr(1)};
}

/// True if the last `converse` failed because of its time limit.
bool answer_is_late(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

std::string no_answer(double seconds) {
  std::ostringstream text;
  text << "it takes connections, and has not answered for " << seconds << " s: it is stopped or frozen";
  return text.str();
}

/// Shows a descriptor to a thread that may shut it down, until just before it is closed.
class Shown {
 public:
  Shown(const std::function<void(int)>& connected, int fd) : connected_(connected) {
    if (connected_) connected_(fd);
  }
  ~Shown() {
    if (connected_ && !kept_) connected_(-1);
  }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;
  void keep() { kept_ = true; }

 private:
  const std::function<void(int)>& connected_;
  bool kept_ = false;
};

/// A connection on which both sides have proved that they have the token.
base::UniqueFd open_connection(const base::Endpoint& server, const JobToken& token, double seconds,
                               std::string& why, const std::function<void(int)>& connected = {},
                               double answer_seconds = kAnswerSeconds) {
  base::UniqueFd fd = base::try_connect(server, seconds, why);
  if (!fd) return fd;
  Shown shown(connected, fd.get());
  const std::string ours = random_bytes(JobToken::kNonceBytes);
  const auto challenge = converse(
      fd.get(), frames::request(frames::kGreet, {}, std::string(frames::kGreeting) + ours), answer_seconds);
  if (!challenge && answer_is_late(errno)) {
    why = no_answer(answer_seconds);
    return base::UniqueFd();
  }
  if (!challenge || challenge->what != frames::kChallenge ||
      challenge->value.size() != JobToken::kNonceBytes + JobToken::kProofBytes) {
    why = "the process that listens there is no rendezvous";
    return base::UniqueFd();
  }
  const std::string theirs = challenge->value.substr(0, JobToken::kNonceBytes);
  if (!same_bytes(challenge->value.substr(JobToken::kNonceBytes),
                  token.proof(JobToken::Side::server, ours, theirs))) {
    why = "the rendezvous there belongs to a job with another token";
    return base::UniqueFd();
  }
  const auto answer = converse(
      fd.get(), frames::request(frames::kProve, {}, token.proof(JobToken::Side::client, ours, theirs)),
      answer_seconds);
  if (answer && answer->what == frames::kDone) {
    shown.keep();
    return fd;
  }
  why = "the connection ended";
  return base::UniqueFd();
}

base::CommError unreachable(const base::Endpoint& server, const std::string& why) {
  return base::comm_error("the rendezvous at " + server.text() + " does not answer (" + why +
                          "); see what became of node 0's agent, which serves it");
}

}  // namespace

TcpStore::TcpStore(const base::Endpoint& server, JobToken token, double deadline_seconds)
    : server_(server), token_(std::move(token)), deadline_seconds_(deadline_seconds) {
  const double deadline = base::monotonic_seconds() + deadline_seconds;
  std::string why;
  for (;;) {
    const double left = deadline - base::monotonic_seconds();
    base::UniqueFd fd = open_connection(server_, token_, std::max(left, 0.1), why);
    if (fd) {
      idle_.push_back(std::move(fd));
      return;
    }
    if (left <= 0) throw unreachable(server_, why);
    std::this_thread::sleep_for(kRetryInterval);
  }
}

TcpStore::~TcpStore() = default;

std::optional<std::string> TcpStore::ask(char request, const std::string& key, std::string_view value,
                                         double seconds) {
  base::check(key.size() <= frames::kLongestKey && 5 + key.size() + value.size() <= StoreLimits{}.frame_bytes,
              "what goes to the rendezvous fits in a frame");
  base::UniqueFd fd;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      fd = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  std::string why = "the connection ended";
  if (!fd) fd = open_connection(server_, token_, deadline_seconds_, why);
  if (!fd) throw unreachable(server_, why);
  const auto answer = converse(fd.get(), frames::request(request, key, value), seconds + kAnswerSeconds);
  if (!answer) throw unreachable(server_, "the connection ended");
  if (answer->what == frames::kError)
    throw base::comm_error("the rendezvous at " + server_.text() + " refused a request: " + answer->value);
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(fd));
  }
  if (answer->what == frames::kNothing) return std::nullopt;
  return answer->value;
}

void TcpStore::set(const std::string& key, const std::string& value) { ask(frames::kSet, key, value, 0); }

std::optional<std::string> TcpStore::get(const std::string& key) { return ask(frames::kGet, key, {}, 0); }

std::optional<std::string> TcpStore::wait(const std::string& key, double seconds) {
  const auto milliseconds = static_cast<std::int64_t>(1e3 * std::clamp(seconds, 0.0, 1e9));
  return ask(frames::kWait, key, std::to_string(milliseconds), std::max(seconds, 0.0));
}

std::int64_t TcpStore::add(const std::string& key, std::int64_t amount) {
  return std::stoll(ask(frames::kAdd, key, std::to_string(amount), 0).value());
}

base::UniqueFd join_store(const base::Endpoint& server, const JobToken& token, std::string_view text,
                          double seconds, std::string& why, const std::function<void(int)>& connected,
                          double answer_seconds) {
  base::UniqueFd fd = open_connection(server, token, seconds, why, connected, answer_seconds);
  if (!fd) return fd;
  Shown shown(connected, fd.get());
  const auto answer = converse(fd.get(), frames::request(frames::kJoin, {}, text), answer_seconds);
  if (answer && answer->what == frames::kDone) {
    shown.keep();
    return fd;
  }
  why = "the connection ended";
  return base::UniqueFd();
}

}  // namespace trainerd::parallel
