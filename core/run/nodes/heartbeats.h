#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/run/nodes/beat_watch.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// Signs of life between agents, on a thread and connections of their own: an agent whose event loop waits
/// for a disk goes on beating, and says for how long its loop has been busy; one that is stopped, frozen or
/// out of reach does not.
class Heartbeats {
 public:
  explicit Heartbeats(const BeatOptions& options);
  ~Heartbeats();
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;

  enum class Counts : std::uint8_t {
    at_once,          ///< it beats from when it has the connection
    from_first_beat,  ///< it has the connection, and may be long in taking it up
  };
  /// Beats to a peer, at once and from then on, and listens to it by this connection. Its silence counts from
  /// then, or later.
  void add(std::int64_t peer, base::UniqueFd socket, Counts counts);
  void remove(std::int64_t peer);
  /// This agent's event loop waits for something to happen, or handles what has.
  void loop_waits();
  void loop_works();

  /// For so long nothing is received from peers or sent to them, as over a link that loses packets.
  void drop_link(double seconds);

  struct Report {
    enum class What : std::uint8_t {
      silent,  ///< it counts as dead, and is removed
      busy,    ///< it is alive, and its event loop has not turned
    };
    What what = What::silent;
    std::int64_t peer = 0;
    double seconds = 0;  ///< for how long
  };
  /// What was noticed since the last call.
  std::vector<Report> take();
  /// Readable when `take` has something.
  int event_fd() const;
  /// Whether a peer is late by more than a beat, and may turn out to be dead.
  bool in_doubt() const;

  /// For a process with one peer: whether the peer sent a beat within `dead_seconds`, by this process' own
  /// clock. False for a process that was stopped for longer, from its first instruction on: beats that arrive
  /// at once after that may have been sent before, and do not count. True before the first beat. Any thread
  /// may call it, also after this object has ended.
  std::function<bool()> counted_on() const;
  /// The peer has ended: its silence does not count (`counted_on`).
  void peer_has_ended();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::core::run
