#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/base/clock.h"
#include "parallel/group/group.h"

namespace trainerd::core::train {

/// What a rank is doing.
enum class Activity : std::uint8_t {
  none,          ///< its process has not reached `load` yet
  load,          ///< connects to its groups, opens data, loads its state
  between,       ///< between two steps
  data_wait,     ///< waits for a microbatch
  forward,       ///< of a chunk and a microbatch
  backward,      ///< the same; also the weight gradients alone
  reduce_grads,  ///< waits for its gradients' reductions
  optimizer,     ///< gradient norm over all ranks, and the update
  report,        ///< the host waits for the step's results on the device
  evaluation,    ///< of a microbatch
  snapshot,      ///< copies its state
  agent_wait,    ///< waits for the agent, which writes checkpoints
  done,          ///< all its steps
  meet,          ///< waits for the members of a group to come and to connect
};
inline constexpr std::size_t kActivities = 14;
/// "forward", ...
const char* name_of(Activity activity);

/// A rank's current activity, its start, and durations, in memory that another process may read at any time.
/// Only the rank's main thread writes it, by relaxed stores, at negligible cost per step; a reader may see
/// one change without the next. All zeros is the initial state.
class RankPage {
 public:
  static constexpr std::size_t kSteps = 32, kDurations = 16;

  void enter(Activity activity, int chunk = -1, int microbatch = -1) {
    const double now = base::monotonic_seconds();
    const auto before = static_cast<std::size_t>(get(activity_));
    put(durations_[before][get(entered_[before]) % kDurations], static_cast<float>(now - get(since_)));
    put(entered_[before], get(entered_[before]) + 1);
    put(activity_, static_cast<std::uint8_t>(activity));
    put(chunk_, chunk);
    put(microbatch_, microbatch);
    put(since_, now);
    beat(now);
  }
  /// The main thread issues an operation of the group or waits for one, until `resume`.
  void wait(parallel::Group group) {
    put(waits_, static_cast<std::uint8_t>(1 + static_cast<int>(group)));
    beat(base::monotonic_seconds());
  }
  void resume() {
    put(waits_, std::uint8_t{0});
    beat(base::monotonic_seconds());
  }
  void begin_step(std::int64_t step) {
    put(step_, step);
    enter(Activity::between);
  }
  void end_step(double seconds) {
    put(step_seconds_[static_cast<std::size_t>(get(steps_)) % kSteps], static_cast<float>(seconds));
    put(steps_, get(steps_) + 1);
    enter(Activity::between);
  }

  /// The next steps are `factor` times as long as those before. Nothing changes if that is less than 1.
  void expect_longer(double factor) {
    if (factor <= 1) return;
    const auto scale = [factor](Shared<float>& seconds) {
      put(seconds, static_cast<float>(factor) * get(seconds));
    };
    for (auto& seconds : step_seconds_) scale(seconds);
    for (auto& of_kind : durations_)
      for (auto& seconds : of_kind) scale(seconds);
  }

  /// Increases with every change.
  std::uint64_t beats() const { return get(beats_); }
  double beat_at() const { return get(beat_at_); }
  Activity activity() const { return static_cast<Activity>(get(activity_)); }
  double since() const { return get(since_); }
  std::int64_t step() const { return get(step_); }
  int chunk() const { return get(chunk_); }
  int microbatch() const { return get(microbatch_); }
  std::optional<parallel::Group> waits() const {
    const std::uint8_t waits = get(waits_);
    return waits == 0 ? std::nullopt : std::optional(static_cast<parallel::Group>(waits - 1));
  }
  /// Number of steps since the rank's process began.
  std::int64_t steps() const { return get(steps_); }
  /// Median of the latest kSteps; 0 if there is none.
  double median_step_seconds() const {
    std::vector<float> latest;
    for (std::size_t i = 0; i < std::min(kSteps, static_cast<std::size_t>(steps())); ++i)
      latest.push_back(get(step_seconds_[i]));
    if (latest.empty()) return 0;
    const auto middle = latest.begin() + static_cast<std::ptrdiff_t>(latest.size() / 2);
    std::nth_element(latest.begin(), middle, latest.end());
    return static_cast<double>(*middle);
  }
  /// Longest of the latest kDurations completed activities of this kind.
  double longest_seconds(Activity activity) const {
    const auto kind = static_cast<std::size_t>(activity);
    float longest = 0;
    for (std::size_t i = 0; i < std::min(kDurations, static_cast<std::size_t>(get(entered_[kind]))); ++i)
      longest = std::max(longest, get(durations_[kind][i]));
    return static_cast<double>(longest);
  }

 private:
  template <class T>
  using Shared = std::atomic<T>;
  template <class T>
  static void put(Shared<T>& to, T value) {
    to.store(value, std::memory_order_relaxed);
  }
  template <class T>
  static T get(const Shared<T>& from) {
    return from.load(std::memory_order_relaxed);
  }
  void beat(double now) {
    put(beat_at_, now);
    put(beats_, get(beats_) + 1);
  }

  Shared<std::uint64_t> beats_{};
  Shared<double> beat_at_{}, since_{};
  Shared<std::int64_t> step_{}, steps_{};
  Shared<int> chunk_{}, microbatch_{};
  Shared<std::uint8_t> activity_{}, waits_{};                 ///< waits_: 1 + group; 0: no group
  std::array<Shared<std::uint32_t>, kActivities> entered_{};  ///< number of times it was entered and left
  std::array<Shared<float>, kSteps> step_seconds_{};
  std::array<std::array<Shared<float>, kDurations>, kActivities> durations_{};
  static_assert(Shared<double>::is_always_lock_free && Shared<std::uint64_t>::is_always_lock_free);
};

}  // namespace trainerd::core::train
