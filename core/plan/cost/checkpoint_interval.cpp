#include "core/plan/cost/checkpoint_interval.h"

#include <algorithm>
#include <cmath>

namespace trainerd::core::plan {

double daly_interval_seconds(double save_seconds, double mtbf_seconds) {
  if (save_seconds >= 2 * mtbf_seconds) return mtbf_seconds;
  const double x = save_seconds / (2 * mtbf_seconds);
  return std::sqrt(2 * save_seconds * mtbf_seconds) * (1 + std::sqrt(x) / 3 + x / 9) - save_seconds;
}

double checkpoint_interval_seconds(double save_seconds, double write_seconds, double mtbf_seconds) {
  return std::max(daly_interval_seconds(save_seconds, mtbf_seconds), write_seconds);
}

}  // namespace trainerd::core::plan
