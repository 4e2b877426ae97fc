#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "io/records/records.h"

namespace trainerd::core::run {

/// First and last step after a run's start whose medians are compared with the plan. Earlier steps touch
/// memory for the first time.
inline constexpr std::pair<std::int64_t, std::int64_t> kComparedSteps{5, 20};

/// Predictions for the reporting rank, and planned memory of the node's ranks.
struct Planned {
  std::optional<double> step_seconds;          ///< none: not predicted
  base::TimeLedger time;                       ///< of the reporting rank
  std::int64_t samples = 0;                    ///< of the planned step; others are not compared
  std::map<std::int64_t, std::int64_t> bytes;  ///< by rank
};

/// Collects a run's first steps and its ranks' memory, and compares them with the plan.
class PlanCheck {
 public:
  PlanCheck(Planned planned, std::int64_t start_step, std::int64_t steps);

  void add(const io::StepRecord& record);
  void add_memory(std::int64_t rank, std::int64_t bytes) { used_[rank] = bytes; }
  /// Returns the comparison once, when all data has arrived; never for a run with too few steps.
  std::optional<io::PredictionRecord> take();

 private:
  Planned planned_;
  std::int64_t first_, last_;
  std::vector<io::StepRecord> records_;
  std::map<std::int64_t, std::int64_t> used_;
  bool taken_ = false;
};

}  // namespace trainerd::core::run
