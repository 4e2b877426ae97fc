#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/run/wire/messages.h"

namespace trainerd::core::run {

/// Ranks whose results of a step differ from those of the same step computed again.
struct DifferenceVerdict {
  std::int64_t step = 0;
  std::vector<std::int64_t> ranks;
  std::string message;
  std::vector<std::string> details;  ///< "rank 1: layers.0.down.weight"
  bool fatal = false;                ///< the run must end
};

/// Gathers the differences that the ranks of one attempt report. A rank that computes wrongly a second time
/// ends the run, because it will do so again. If several ranks differ and the one with the error cannot be
/// identified, the difference is reported and the run goes on.
class DifferenceWatch {
 public:
  /// Returns a verdict with the message of the last rank that differs.
  std::optional<DifferenceVerdict> add(ResultsDiffer m);

 private:
  std::map<std::int64_t, std::map<std::int64_t, ResultsDiffer>> reported_;  ///< by step, rank
  std::map<std::int64_t, std::int64_t> first_;  ///< by rank: the step of its first wrong result
};

}  // namespace trainerd::core::run
