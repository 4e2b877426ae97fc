#pragma once

// Seconds of operators and collectives from curves measured on the machine itself.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/rank/record.h"
#include "parallel/layout/measured_rates.h"

namespace trainerd::core::plan {

/// "linear_fprop.bf16": the key of an operator's curve.
std::string curve_of(kernels::Operator op, const kernels::OpClass& what);
/// The fallback curve of a dtype, for operators that have none of their own.
std::string other_curve(kernels::DType dtype);

/// Terms that the coefficients of matrix products and attention multiply: 1, FLOPs, bytes, then for products
/// the elements of the two operands (packing, repeated reads), for attention its scores (exponentials) and 0,
/// and last the bytes beyond a core's own cache. Other operators have points over their bytes instead.
using kernels::kShapeTerms;
bool has_shape(const kernels::OpClass& what);
std::array<double, kShapeTerms> shape_terms(const kernels::OpClass& what, const kernels::Cost& cost);

/// Interpolates between points as a power law. Beyond the last point it grows in proportion to x; before the
/// first it shrinks in proportion, to half of the first point's seconds at least.
double on_points(std::span<const double> points, double x);

/// Device and host time. Interpolates between one busy device and all of them by the number of busy devices.
double measured_seconds(const rank::RecordedOp& op, const parallel::MeasuredRates& rates);

/// Seconds of a collective among `size` devices of a node, or of a message. For more devices than were
/// measured the time grows in proportion.
double measured_collective(const std::string& op, std::int64_t bytes, std::int64_t size,
                           const parallel::MeasuredRates& rates);

}  // namespace trainerd::core::plan
