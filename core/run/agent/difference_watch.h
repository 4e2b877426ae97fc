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
  bool fatal = false;                ///< the run ends
};

/// Gathers what the ranks tell of one attempt. A rank that computed wrongly a second time ends the run: it
/// would go on to. Where several ranks differ, because they got the error from one that cannot be told, it is
/// reported alone.
class DifferenceWatch {
 public:
  /// A verdict by the message of the last rank that differs.
  std::optional<DifferenceVerdict> add(ResultsDiffer m);

 private:
  std::map<std::int64_t, std::map<std::int64_t, ResultsDiffer>> told_;  ///< by step, rank
  std::map<std::int64_t, std::int64_t> first_;  ///< by rank that computed wrongly: the step
};

}  // namespace trainerd::core::run
