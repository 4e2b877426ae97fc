#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/run/agent/durable_copier.h"
#include "io/checkpoint/options.h"

namespace trainerd::core::run {

/// Which checkpoint is copied to the durable tier, and which is next: at most one at a time over all nodes.
/// The leader's.
class DurableTier {
 public:
  struct Copy {
    std::int64_t step = 0;
    std::string folder = {};  ///< in the run's directory
    std::string target = {};  ///< in the tier
    std::int64_t ranks = 0;   ///< shards
    bool by_leader = false;   ///< all of them: of a checkpoint that was there when the run began
    bool from_memory = false;
    std::string manifest = {};    ///< of one from memory
    std::int64_t ranks_left = 0;  ///< whose shards are not there yet
    std::int64_t bytes = 0;       ///< sent
    double begun = 0;             ///< monotonic seconds
    double failing_since = 0;     ///< 0: the last try did not fail
  };

  explicit DurableTier(const io::DurableOptions& options) : options_(options) {}

  /// Whether a checkpoint of this step is to be copied, by what was before it.
  bool is_due(std::int64_t step, double now) const;
  /// It is the next one, in the place of one that has not begun, whose folder is returned.
  std::optional<std::string> add(Copy copy);
  /// Whether the one under way can be dropped for the next: it fails.
  bool is_superseded() const { return copying_ && copying_->failing_since > 0 && next_; }
  /// Begins the next one, if none is under way.
  std::optional<Copy> begin(double now);
  /// That under way.
  Copy* copying() { return copying_ ? &*copying_ : nullptr; }
  const Copy* copying() const { return copying_ ? &*copying_ : nullptr; }
  /// Whether it is the one under way.
  bool copies(const std::string& folder) const { return copying_ && copying_->folder == folder; }
  /// It is done, or will not be.
  void end() { copying_.reset(); }
  bool idle() const { return !copying_ && !next_; }

 private:
  io::DurableOptions options_;
  std::optional<Copy> copying_, next_;
  std::optional<std::int64_t> last_step_;  ///< that was added
  double last_at_ = 0;
};

}  // namespace trainerd::core::run
