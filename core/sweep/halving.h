#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace trainerd::core::sweep {

/// The metric that compares jobs at a rung; lower is better.
enum class HalvingMetric : std::uint8_t { loss, validation_loss };

/// Successive halving (Jamieson and Talwalkar, AISTATS 2016; Li et al., Hyperband, JMLR 18, 2018): at each
/// rung the best 1/eta of the jobs continue and the others stop for good.
struct Halving {
  HalvingMetric metric = HalvingMetric::loss;
  std::int64_t eta = 3;
  std::int64_t min_steps = 0;  ///< steps of the first rung; each next rung has eta times as many
  std::int64_t rungs = 0;      ///< maximum number; 0: as many as fit before the last step
};

/// The rungs' steps for jobs of `steps` steps, ascending; all less than `steps`.
std::vector<std::int64_t> rung_steps(const Halving& halving, std::int64_t steps);

/// Indices of the jobs that continue after a rung, ascending: the best 1/eta of the `values.size()` jobs that
/// were to reach it, rounded down, at least one; on ties the first. A job without a finite value does not
/// continue.
std::vector<std::size_t> promoted(const std::vector<std::optional<double>>& values, std::int64_t eta);

}  // namespace trainerd::core::sweep
