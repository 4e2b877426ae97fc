#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/run/nodes/beat_watch.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// Heartbeats between agents, on their own thread and connections. An agent whose event loop waits for a disk
/// still sends beats, and reports for how long its loop has been busy. An agent that is stopped, frozen or
/// unreachable sends none.
class Heartbeats {
 public:
  explicit Heartbeats(const BeatOptions& options);
  ~Heartbeats();
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;

  enum class Counts : std::uint8_t {
    at_once,          ///< the peer sends beats as soon as it has the connection
    from_first_beat,  ///< the peer may take long before it sends its first beat
  };
  /// Starts to send beats to a peer through this connection, and to receive its beats. `counts`: from when
  /// the peer's silence counts.
  void add(std::int64_t peer, base::UniqueFd socket, Counts counts);
  void remove(std::int64_t peer);
  /// The agent's event loop waits for events (`loop_waits`), or handles some (`loop_works`).
  void loop_waits();
  void loop_works();

  /// Injected fault: sends and receives no beats for `seconds`, like a link that loses packets.
  void drop_link(double seconds);

  struct Report {
    enum class What : std::uint8_t {
      silent,  ///< the peer counts as dead and is removed
      busy,    ///< the peer is alive, but its event loop is blocked
    };
    What what = What::silent;
    std::int64_t peer = 0;
    double seconds = 0;  ///< duration of that
  };
  /// Reports since the last call.
  std::vector<Report> take();
  /// Readable when `take` has a report.
  int event_fd() const;
  /// True if a beat of some peer is overdue, so the peer may be dead.
  bool in_doubt() const;

  /// For a process with one peer: a function that returns true if the peer sent a beat within `dead_seconds`
  /// by this process' clock. If the process was stopped for longer, it is false from the first instruction
  /// on: beats that arrive right after that may be old and do not count. True before the first beat. Any
  /// thread may call it, also after this object has ended.
  std::function<bool()> counted_on() const;
  /// The peer has ended normally, so its silence does not count (`counted_on`).
  void peer_has_ended();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::core::run
