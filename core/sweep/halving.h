#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace trainerd::core::sweep {

/// What jobs are compared by at a rung: less is better.
enum class HalvingMetric : std::uint8_t { loss, validation_loss };

/// Successive halving (Jamieson and Talwalkar, AISTATS 2016; Li et al., Hyperband, JMLR 18, 2018): at each
/// rung the best 1/eta of the jobs go on, and the others stop for good.
struct Halving {
  HalvingMetric metric = HalvingMetric::loss;
  std::int64_t eta = 3;
  std::int64_t min_steps = 0;  ///< of the first rung; each next one is at eta times as many
  std::int64_t rungs = 0;      ///< at most; 0: as many as come before the last step
};

/// The steps of the rungs of jobs of `steps` steps, ascending; all less than `steps`.
std::vector<std::int64_t> rung_steps(const Halving& halving, std::int64_t steps);

/// Which jobs go on after a rung, as indices in ascending order: of `values.size()` jobs that were to reach
/// it the best 1/eta, rounded down and at least one; of equals the first. A job without a finite value does
/// not go on.
std::vector<std::size_t> promoted(const std::vector<std::optional<double>>& values, std::int64_t eta);

}  // namespace trainerd::core::sweep
