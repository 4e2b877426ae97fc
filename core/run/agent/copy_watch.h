#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/run/wire/messages.h"

namespace trainerd::core::run {

/// The result of a comparison in which the copies of some state differ between ranks.
struct CopyVerdict {
  std::int64_t step = 0;  ///< the state after this step
  /// Ranks whose copies differ from the majority's. Without a majority, as with two copies, all holders are
  /// listed.
  std::vector<std::int64_t> ranks;
  bool decided = false;  ///< true if there was a majority for every tensor that differs
  std::vector<std::string> details;
};

/// "silent corruption in the state after step 20: rank 1 differs from its replicas".
std::string to_text(const CopyVerdict& verdict);

/// Compares the hashes of replicated state step by step, once the hashes of all ranks have arrived.
class CopyWatch {
 public:
  explicit CopyWatch(std::int64_t ranks) : ranks_(ranks) {}

  /// Adds a rank's hashes. Returns a verdict with the last rank's message of a step, if some copies differ.
  std::optional<CopyVerdict> add(CopiesHashed m);
  /// Number of states that were found equal, and the step of the newest one; -1: none yet.
  std::int64_t equal() const { return equal_; }
  std::int64_t equal_step() const { return equal_step_; }

 private:
  CopyVerdict compare(std::int64_t step) const;

  std::int64_t ranks_;
  std::map<std::int64_t, std::vector<std::string>> names_;                           ///< by rank
  std::map<std::int64_t, std::map<std::int64_t, std::vector<std::uint64_t>>> sent_;  ///< by step, rank
  std::int64_t equal_ = 0, equal_step_ = -1;
};

}  // namespace trainerd::core::run
