#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/run/wire/messages.h"

namespace trainerd::core::run {

/// What ranks hold that differs from the copies of others.
struct CopyVerdict {
  std::int64_t step = 0;  ///< of the state after it
  /// Where the copies of three or more ranks differ from those of the majority; of two, both are here,
  /// because the odd one is unknown.
  std::vector<std::int64_t> ranks;
  bool decided = false;  ///< by a majority, for every tensor that differs
  std::vector<std::string> details;
};

/// "silent corruption in the state after step 20: rank 1 differs from its replicas".
std::string to_text(const CopyVerdict& verdict);

/// Compares the hashes of what several ranks hold alike, state by state, when those of all ranks are there.
class CopyWatch {
 public:
  explicit CopyWatch(std::int64_t ranks) : ranks_(ranks) {}

  /// A verdict when a state has been compared and not found equal: by the message of the last rank.
  std::optional<CopyVerdict> add(CopiesHashed m);
  /// States that were compared and found equal, and the step of the newest one; -1: none was.
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
