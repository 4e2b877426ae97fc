#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace trainerd::core::run {

struct BeatOptions {
  double every_seconds = 1;  ///< between two beats of a peer
  double dead_seconds = 5;   ///< without one, after which it counts as dead
};

/// When each peer was heard of last. Times are of this process' monotonic clock.
class BeatWatch {
 public:
  explicit BeatWatch(const BeatOptions& options) : options_(options) {}

  struct Silent {
    std::int64_t peer = 0;
    double seconds = 0;  ///< since it was heard of
  };
  /// A peer is there, and counts as heard of.
  void add(std::int64_t peer, double now) { heard_[peer] = now; }
  void forget(std::int64_t peer) { heard_.erase(peer); }
  /// Of a peer that is there.
  void heard(std::int64_t peer, double now);
  /// Peers that count as dead, each once. To be called several times per beat, after `heard` for all that
  /// has come: a longer time between two calls is one in which this process did not run, and says nothing of
  /// the peers.
  std::vector<Silent> judge(double now);
  /// The longest that a peer was not heard of; 0 without peers.
  double longest(double now) const;

 private:
  BeatOptions options_;
  std::map<std::int64_t, double> heard_;
  double judged_ = -1;  ///< when; negative: not yet
};

}  // namespace trainerd::core::run
