#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

namespace trainerd::io {

/// What the wall time of a run went into.
enum class WallPart : std::uint8_t {
  useful,    ///< steps that count, without checkpoints
  replay,    ///< steps that a failure made void
  save,      ///< standing still for checkpoints and snapshots
  evaluate,  ///< evaluations
  detect,    ///< from the last step before a restart until it was decided, the step under way with it
  restart,   ///< from then until the next step began: processes, communicators, the restore
  start,     ///< from the start of a process until its first step
  down,      ///< no process ran
  other
};
inline constexpr std::array<const char*, 9> kWallParts{"useful",  "replay", "save", "evaluate", "detect",
                                                       "restart", "start",  "down", "other"};

/// Forgets what is known of steps up to `step`, that of a complete checkpoint, but for the latest 65,536:
/// what other nodes' memory holds may be older than the checkpoint, and is gone on from.
template <class Value>
void forget_to(std::deque<std::pair<std::int64_t, Value>>& steps, std::int64_t step) {
  constexpr std::size_t kDoneAgain = std::size_t{1} << 16;
  while (steps.size() > kDoneAgain && steps.front().first <= step) steps.pop_front();
}

/// Takes what happened to a run in the order of time, and parts the wall time since its first start: every
/// second is of one part. Times are Unix seconds.
class WallLedger {
 public:
  enum class Begin : std::uint8_t { process, workers };
  /// A process begins, or its workers begin again: after `step`. `last_step_end`: of the attempt before, 0 if
  /// not known; `lost_seconds`: of its steps that are void now.
  void begin(Begin what, double now, std::int64_t step, double last_step_end, double lost_seconds);
  void step(std::int64_t step, double end, double seconds, double save_seconds);
  void evaluation(double end, double seconds);
  /// The process ends.
  void end(double now);
  /// A checkpoint of this step is complete (`forget_to`).
  void keep(std::int64_t step);

  double seconds(WallPart part) const { return parts_[static_cast<std::size_t>(part)]; }
  /// Of all parts: from the first start until what happened last.
  double total() const;

 private:
  void add(WallPart part, double seconds) { parts_[static_cast<std::size_t>(part)] += seconds; }
  double advance(double now);

  std::array<double, kWallParts.size()> parts_{};
  double until_ = 0;  ///< accounted for; 0: nothing has begun
  WallPart phase_ = WallPart::other;
  std::deque<std::pair<std::int64_t, double>> useful_;  ///< by step: what may become void
};

}  // namespace trainerd::io
