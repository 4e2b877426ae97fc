#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace trainerd::core::run {

struct BeatOptions {
  double every_seconds = 1;  ///< between two beats of a peer
  double dead_seconds = 5;   ///< without one, after which it counts as dead
};

/// When each peer sent its last beat. Times are of this process' monotonic clock.
class BeatWatch {
 public:
  explicit BeatWatch(const BeatOptions& options) : options_(options) {}

  struct Silent {
    std::int64_t peer = 0;
    double seconds = 0;  ///< since its last beat
  };
  /// Adds a peer, as if it had just sent a beat.
  void add(std::int64_t peer, double now) { last_beats_[peer] = now; }
  void forget(std::int64_t peer) { last_beats_.erase(peer); }
  /// A beat of a peer has come; an unknown peer is passed over.
  void on_beat(std::int64_t peer, double now);
  /// Peers that count as dead, each once. To be called several times per beat, after `on_beat` for all beats
  /// received. A longer time between two calls is one in which this process did not run, and does not count
  /// against the peers.
  std::vector<Silent> judge(double now);
  /// The longest time since a peer's last beat; 0 without peers.
  double longest(double now) const;

 private:
  BeatOptions options_;
  std::map<std::int64_t, double> last_beats_;
  double judged_ = -1;  ///< when; negative: not yet
};

}  // namespace trainerd::core::run
