#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace trainerd::core::run {

struct BeatOptions {
  double every_seconds = 1;  ///< interval between two beats of a peer
  double dead_seconds = 5;   ///< time without a beat after which a peer counts as dead
};

/// The time of each peer's last beat, by this process' monotonic clock.
class BeatWatch {
 public:
  explicit BeatWatch(const BeatOptions& options) : options_(options) {}

  struct Silent {
    std::int64_t peer = 0;
    double seconds = 0;  ///< time since its last beat
  };
  /// Adds a peer, as if it had just sent a beat.
  void add(std::int64_t peer, double now) { last_beats_[peer] = now; }
  void forget(std::int64_t peer) { last_beats_.erase(peer); }
  /// Records a beat of a peer; unknown peers are ignored.
  void on_beat(std::int64_t peer, double now);
  /// Returns the peers that count as dead, each once. Call it several times per beat interval, after
  /// `on_beat` for all received beats. If the time between two calls is longer than a beat interval, this
  /// process did not run then, and that time does not count against the peers.
  std::vector<Silent> judge(double now);
  /// The longest time since a peer's last beat; 0 without peers.
  double longest(double now) const;

 private:
  BeatOptions options_;
  std::map<std::int64_t, double> last_beats_;
  double judged_ = -1;  ///< time of the last call of `judge`; negative: none
};

}  // namespace trainerd::core::run
