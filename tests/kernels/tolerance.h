#pragma once

// The only place for tolerances: the largest error of an operator's result against its float64 reference.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/tensor/dtype.h"

namespace trainerd::test {

/// Largest relative error of one rounding to a dtype: 2^-p for p bits of significand.
constexpr double unit_roundoff(kernels::DType dtype) {
  return dtype == kernels::DType::bf16  ? 0x1p-8
         : dtype == kernels::DType::f16 ? 0x1p-11
         : dtype == kernels::DType::f32 ? 0x1p-24
                                        : 0x1p-53;
}

/// Allowed `scaled_error` of a result stored in `dtype` whose elements are sums of `length` products in fp32
/// (in fp64 for an fp64 result, with u(fp64) in place of u(fp32)):
///   u(dtype) + u(fp32) (16 + 4 sqrt(length)),   inputs being exact in their dtypes.
/// - u(dtype): the result is rounded once when it is stored.
/// - 16 u(fp32): about ten operations around the sum (exponential, division, root) with errors of 1 to 2
///   units each.
/// - 4 sqrt(length) u(fp32): `length` additions, each with an error of up to u times the partial sum. The
///   errors have random signs, so they grow as sqrt(length), not as length (Higham and Mary, SIAM J. Sci.
///   Comput. 41, 2019). The bound is four standard deviations.
inline double tolerance(kernels::DType dtype, std::int64_t length) {
  const double arithmetic = std::min(unit_roundoff(kernels::DType::f32), unit_roundoff(dtype));
  return unit_roundoff(dtype) + arithmetic * (16.0 + 4.0 * std::sqrt(static_cast<double>(length)));
}

/// Largest |actual - reference| / (|reference| + rms of the reference). The root mean square represents the
/// size of terms in sums that cancel. Infinite for a NaN or different lengths.
inline double scaled_error(const std::vector<double>& actual, const std::vector<double>& reference) {
  if (actual.size() != reference.size()) return std::numeric_limits<double>::infinity();
  double squares = 0;
  for (const double r : reference) squares += r * r;
  const double rms = reference.empty() ? 0.0 : std::sqrt(squares / static_cast<double>(reference.size()));
  double worst = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double error = std::abs(actual[i] - reference[i]), size = std::abs(reference[i]) + rms;
    if (std::isnan(error)) return std::numeric_limits<double>::infinity();
    if (error > 0) worst = std::max(worst, size > 0 ? error / size : std::numeric_limits<double>::infinity());
  }
  return worst;
}

}  // namespace trainerd::test
