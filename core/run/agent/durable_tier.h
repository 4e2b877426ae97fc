#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/run/agent/durable_copier.h"
#include "io/checkpoint/options.h"

namespace trainerd::core::run {

/// Queue of the durable tier, on the leader: the checkpoint being copied, at most one at a time over all
/// nodes, and the next one.
class DurableTier {
 public:
  struct Copy {
    std::int64_t step = 0;
    std::string folder = {};  ///< folder name in the run's directory
    std::string target = {};  ///< folder name in the tier
    std::int64_t ranks = 0;   ///< number of shards
    bool by_leader = false;  ///< the leader copies all shards: the checkpoint is from before this run's start
    bool from_memory = false;
    std::string manifest = {};    ///< for a copy from memory
    std::int64_t ranks_left = 0;  ///< number of shards that are not copied yet
    std::int64_t bytes = 0;       ///< bytes sent
    double begun = 0;             ///< monotonic seconds
    double failing_since = 0;     ///< monotonic seconds; 0: the last try did not fail
  };

  explicit DurableTier(const io::DurableOptions& options) : options_(options) {}

  /// True if a checkpoint of this step must be copied, given the interval and the last one added.
  bool is_due(std::int64_t step, double now) const;
  /// Makes `copy` the next one. Returns the folder of the waiting copy that it replaces, if any.
  std::optional<std::string> add(Copy copy);
  /// True if the current copy is failing and a next one waits, so the current one can be dropped.
  bool is_superseded() const { return copying_ && copying_->failing_since > 0 && next_; }
  /// Starts the next copy if none is under way.
  std::optional<Copy> begin(double now);
  /// The copy under way; null if there is none.
  Copy* copying() { return copying_ ? &*copying_ : nullptr; }
  const Copy* copying() const { return copying_ ? &*copying_ : nullptr; }
  /// True if the copy under way is of this folder.
  bool copies(const std::string& folder) const { return copying_ && copying_->folder == folder; }
  /// The copy under way is done.
  void end() { copying_.reset(); }
  /// The copy under way is given up. Unless a next one waits, the next checkpoint is due.
  void drop() {
    copying_.reset();
    if (!next_) last_step_.reset();
  }
  /// Forgets the next copy if it is of a later step than that. Returns its folder.
  std::optional<std::string> forget_next_after(std::int64_t step) {
    if (!next_ || next_->step <= step) return std::nullopt;
    last_step_.reset();
    return std::exchange(next_, std::nullopt)->folder;
  }
  bool idle() const { return !copying_ && !next_; }

 private:
  io::DurableOptions options_;
  std::optional<Copy> copying_, next_;
  std::optional<std::int64_t> last_step_;  ///< of the copy added last
  double last_at_ = 0;
};

}  // namespace trainerd::core::run
