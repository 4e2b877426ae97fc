#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

namespace trainerd::io {

/// Parts of a run's wall time.
enum class WallPart : std::uint8_t {
  useful,    ///< steps that count, without checkpoints
  replay,    ///< steps that a failure invalidated
  save,      ///< training stalled by checkpoints and snapshots
  evaluate,  ///< evaluations
  detect,    ///< from the last step before a restart to the restart decision, including the interrupted step
  restart,   ///< from there to the start of the next step: processes, communicators, restore
  start,     ///< from the start of a process to its first step
  down,      ///< no process was running
  other
};
inline constexpr std::array<const char*, 9> kWallParts{"useful",  "replay", "save", "evaluate", "detect",
                                                       "restart", "start",  "down", "other"};

/// Drops entries of steps up to `step`, that of a complete checkpoint, but keeps the latest 65,536. A run may
/// continue from a snapshot in another node's memory that is older than the checkpoint.
template <class Value>
void forget_to(std::deque<std::pair<std::int64_t, Value>>& steps, std::int64_t step) {
  constexpr std::size_t kDoneAgain = std::size_t{1} << 16;
  while (steps.size() > kDoneAgain && steps.front().first <= step) steps.pop_front();
}

/// Takes the events of a run in order of time and splits the wall time since its first start. Every second
/// belongs to exactly one part. Times are Unix seconds.
class WallLedger {
 public:
  enum class Begin : std::uint8_t { process, workers };
  /// A process begins, or its workers restart, after `step`. `last_step_end`: end of the previous attempt's
  /// last step, 0 if not known. `lost_seconds`: time of its steps that are now invalid.
  void begin(Begin what, double now, std::int64_t step, double last_step_end, double lost_seconds);
  void step(std::int64_t step, double end, double seconds, double save_seconds);
  void evaluation(double end, double seconds);
  /// The process ends.
  void end(double now);
  /// A checkpoint of this step is complete (`forget_to`).
  void keep(std::int64_t step);

  double seconds(WallPart part) const { return parts_[static_cast<std::size_t>(part)]; }
  /// Sum of all parts: the time from the first start to the latest event.
  double total() const;

 private:
  void add(WallPart part, double seconds) { parts_[static_cast<std::size_t>(part)] += seconds; }
  double advance(double now);

  std::array<double, kWallParts.size()> parts_{};
  double until_ = 0;  ///< end of the time accounted for; 0: nothing has begun
  WallPart phase_ = WallPart::other;
  std::deque<std::pair<std::int64_t, double>> useful_;  ///< per step: time that may become void
};

}  // namespace trainerd::io
