#include "core/run/nodes/heartbeats.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/run/nodes/last_beat.h"
#include "kernels/base/clock.h"

namespace trainerd::core::run {
namespace {

/// Content of a beat: the number of milliseconds for which the sender's event loop has been busy.
using Beat = std::uint64_t;

void wake(int fd) {
  const std::uint64_t one = 1;
  (void)!::write(fd, &one, sizeof(one));
}

void quieten(int fd) {
  std::uint64_t count = 0;
  (void)!::read(fd, &count, sizeof(count));
}

struct Peer {
  base::UniqueFd socket;
  std::string unread;  ///< the first bytes of an incomplete beat
  bool counts = true;  ///< its silence counts
  bool reported_busy = false;
};

}  // namespace

struct Heartbeats::State {
  explicit State(const BeatOptions& given) : options(given), watch(given) {}

  const BeatOptions options;
  mutable std::mutex mutex;  // guards what follows
  BeatWatch watch;
  std::map<std::int64_t, Peer> peers;
  std::vector<Report> reports;
  bool ends = false;
  double link_back_at = 0;  ///< until then nothing is received or sent
  double beats_at = 0;      ///< time of the next beats

  std::shared_ptr<LastBeat> last_beat = std::make_shared<LastBeat>(options);
  std::atomic<double> busy_since{-1};  ///< busy time of the event loop began then; negative: it waits
  base::UniqueFd reported{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  base::UniqueFd changed{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::thread thread;

  void serve();
  void receive(std::int64_t id, Peer& peer, double now);
  void send_beats(double now);
};

/// Called with the mutex held.
void Heartbeats::State::receive(std::int64_t id, Peer& peer, double now) {
  std::array<char, 1024> bytes{};
  const ssize_t n = ::recv(peer.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (!std::exchange(peer.counts, true)) watch.add(id, now);
  // A closed connection is no beat. Its meaning is handled on the agents' other connection.
  if (n <= 0) return peer.socket.reset();
  watch.on_beat(id, now);
  last_beat->on_beat(now);
  peer.unread.append(bytes.data(), static_cast<std::size_t>(n));
  while (peer.unread.size() >= sizeof(Beat)) {
    Beat busy = 0;
    std::memcpy(&busy, peer.unread.data(), sizeof(busy));
    peer.unread.erase(0, sizeof(busy));
    const double seconds = 1e-3 * static_cast<double>(busy);
    if (seconds < options.dead_seconds) peer.reported_busy = false;
    else if (!std::exchange(peer.reported_busy, true)) {
      reports.push_back({Report::What::busy, id, seconds});
      wake(reported.get());
    }
  }
}

/// Called with the mutex held.
void Heartbeats::State::send_beats(double now) {
  const double since = busy_since;
  const Beat busy = since < 0 ? 0 : static_cast<Beat>(std::llround(1e3 * std::max(0.0, now - since)));
  // If a peer's buffer is full the beat is dropped: only the newest matters.
  for (auto& [id, peer] : peers)
    if (peer.socket) (void)!::send(peer.socket.get(), &busy, sizeof(busy), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void Heartbeats::State::serve() {
  ::prctl(PR_SET_NAME, "trainerd:beats");
  std::vector<pollfd> fds;
  std::vector<std::int64_t> ids;
  for (;;) {
    fds.assign(1, {changed.get(), POLLIN, 0});
    ids.clear();
    {
      const std::lock_guard lock(mutex);
      if (ends) return;
      const bool link = base::monotonic_seconds() >= link_back_at;
      for (const auto& [id, peer] : peers)
        if (peer.socket && link) {
          fds.push_back({peer.socket.get(), POLLIN, 0});
          ids.push_back(id);
        }
    }
    // Several times per beat interval, for BeatWatch::judge.
    ::poll(fds.data(), fds.size(), std::max(1, static_cast<int>(250 * options.every_seconds)));
    if (fds[0].revents != 0) quieten(changed.get());
    const std::lock_guard lock(mutex);
    const double now = base::monotonic_seconds();
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (const auto at = peers.find(ids[i]);
          fds[i + 1].revents != 0 && at != peers.end() && at->second.socket.get() == fds[i + 1].fd)
        receive(ids[i], at->second, now);
    if (now >= beats_at && now >= link_back_at) {
      send_beats(now);
      beats_at = now + options.every_seconds;
    }
    for (const BeatWatch::Silent& silent : watch.judge(now)) {
      peers.erase(silent.peer);
      reports.push_back({Report::What::silent, silent.peer, silent.seconds});
      wake(reported.get());
    }
  }
}

Heartbeats::Heartbeats(const BeatOptions& options) : state_(std::make_unique<State>(options)) {
  // Signals must be delivered to the agent's main thread.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  state_->thread = std::thread([this] { state_->serve(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Heartbeats::~Heartbeats() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
  }
  wake(state_->changed.get());
  state_->thread.join();
}

void Heartbeats::add(std::int64_t peer, base::UniqueFd socket, Counts counts) {
  {
    const std::lock_guard lock(state_->mutex);
    Peer& added = state_->peers[peer];
    added.socket = std::move(socket);
    added.counts = counts == Counts::at_once;
    if (added.counts) state_->watch.add(peer, base::monotonic_seconds());
    state_->beats_at = 0;
  }
  wake(state_->changed.get());
}

void Heartbeats::remove(std::int64_t peer) {
  const std::lock_guard lock(state_->mutex);
  state_->peers.erase(peer);
  state_->watch.forget(peer);
  std::erase_if(state_->reports, [&](const Report& report) { return report.peer == peer; });
}

void Heartbeats::drop_link(double seconds) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->link_back_at = base::monotonic_seconds() + seconds;
  }
  wake(state_->changed.get());
}

void Heartbeats::loop_waits() { state_->busy_since = -1; }
void Heartbeats::loop_works() {
  if (state_->busy_since < 0) state_->busy_since = base::monotonic_seconds();
}

std::vector<Heartbeats::Report> Heartbeats::take() {
  quieten(state_->reported.get());
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->reports, {});
}

int Heartbeats::event_fd() const { return state_->reported.get(); }

std::function<bool()> Heartbeats::counted_on() const {
  return [last = state_->last_beat] { return last->recent(base::monotonic_seconds()); };
}

void Heartbeats::peer_has_ended() { state_->last_beat->end(); }

bool Heartbeats::in_doubt() const {
  const std::lock_guard lock(state_->mutex);
  return state_->watch.longest(base::monotonic_seconds()) > 2 * state_->options.every_seconds;
}

}  // namespace trainerd::core::run
