#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "io/records/records.h"

namespace trainerd::core::run {

/// Steps after a run's start whose medians are held against the plan: the first ones touch memory for the
/// first time.
inline constexpr std::pair<std::int64_t, std::int64_t> kComparedSteps{5, 20};

/// What a run was planned to take, on the rank that reports and of the node's ranks.
struct Planned {
  std::optional<double> step_seconds;          ///< nothing: not predicted
  base::TimeLedger time;                       ///< of the reporting rank
  std::map<std::int64_t, std::int64_t> bytes;  ///< by rank
};

/// Collects a run's first steps and its ranks' memory until they can be held against its plan.
class PlanCheck {
 public:
  PlanCheck(Planned planned, std::int64_t start_step, std::int64_t steps);

  void add(const io::StepRecord& record);
  void add_memory(std::int64_t rank, std::int64_t bytes) { used_[rank] = bytes; }
  /// Once, when everything is there; nothing of a run with too few steps.
  std::optional<io::PredictionRecord> take();

 private:
  Planned planned_;
  std::int64_t first_, last_;
  std::vector<io::StepRecord> records_;
  std::map<std::int64_t, std::int64_t> used_;
  bool taken_ = false;
};

}  // namespace trainerd::core::run
