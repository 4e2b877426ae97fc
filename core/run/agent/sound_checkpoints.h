#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "io/checkpoint/checkpoint.h"

namespace trainerd::core::run {

/// The checkpoints of a run with `supervise.hash_every` that must not be removed, whatever `checkpoint.keep`
/// says: those whose state is not compared yet, and the newest two whose state is sound. After a corruption
/// the former are withdrawn, and the newest sound one is too if the corruption came right after its
/// comparison.
class SoundCheckpoints {
 public:
  /// From now on the store pins each checkpoint as it becomes complete.
  explicit SoundCheckpoints(io::PinnedFolders& pinned) : pinned_(pinned) { pinned_.pin_new(); }

  /// The run starts from this checkpoint, or from a later state in memory.
  void begin(std::int64_t step, const std::string& folder) {
    pinned_.pin(folder);
    completed(step, folder);
  }
  /// A checkpoint, which the store has pinned, is complete.
  void completed(std::int64_t step, const std::string& folder) {
    const auto [it, is_new] = folders_.try_emplace(step, folder);
    if (is_new) return;
    pinned_.unpin(it->second);  // the step was saved again
    it->second = folder;
  }
  /// The states up to this step are sound.
  void settle(std::int64_t step) {
    auto first = folders_.upper_bound(step);
    for (int kept = 0; kept < kKept && first != folders_.begin(); ++kept) --first;
    for (auto it = folders_.begin(); it != first; it = folders_.erase(it)) pinned_.unpin(it->second);
  }
  /// All states of earlier attempts are sound: each compared its own.
  void settle_all() { settle(std::numeric_limits<std::int64_t>::max()); }

 private:
  static constexpr int kKept = 2;

  io::PinnedFolders& pinned_;
  std::map<std::int64_t, std::string> folders_;  ///< pinned, by step
};

}  // namespace trainerd::core::run
