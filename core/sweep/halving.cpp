#include "core/sweep/halving.h"

#include <algorithm>
#include <cmath>

namespace trainerd::core::sweep {

std::vector<std::int64_t> rung_steps(const Halving& halving, std::int64_t steps) {
  std::vector<std::int64_t> rungs;
  for (std::int64_t step = halving.min_steps; step < steps; step *= halving.eta) {
    rungs.push_back(step);
    if (static_cast<std::int64_t>(rungs.size()) == halving.rungs || step > steps / halving.eta) break;
  }
  return rungs;
}

std::vector<std::size_t> promoted(const std::vector<std::optional<double>>& values, std::int64_t eta) {
  std::vector<std::size_t> best;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] && std::isfinite(*values[i])) best.push_back(i);
  std::stable_sort(best.begin(), best.end(),
                   [&](std::size_t a, std::size_t b) { return *values[a] < *values[b]; });
  const std::size_t keep = std::max<std::size_t>(1, values.size() / static_cast<std::size_t>(eta));
  if (best.size() > keep) best.resize(keep);
  std::sort(best.begin(), best.end());
  return best;
}

}  // namespace trainerd::core::sweep
