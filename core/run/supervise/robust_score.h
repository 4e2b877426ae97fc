#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "io/text/text.h"

namespace trainerd::core::run {

/// Robust z-score of a value: (x - median) / spread. The spread is 1.4826 times the median absolute deviation
/// (the standard deviation of a normal distribution), and at least `least_spread` of the median, so that
/// nearly constant values give low scores.
inline double robust_score(std::vector<double> values, double x, double least_spread = 0.01) {
  constexpr double kSigmaOfMad = 1.4826;
  const double middle = io::median(values);
  for (double& value : values) value = std::abs(value - middle);
  const double spread =
      std::max(kSigmaOfMad * io::median(std::move(values)), least_spread * std::abs(middle));
  return spread > 0 ? (x - middle) / spread : 0;
}

}  // namespace trainerd::core::run
