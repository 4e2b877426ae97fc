#pragma once

// Seconds of operators and collectives by curves that were measured on the machine itself.

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
/// The curve for operators that have none, of a dtype.
std::string other_curve(kernels::DType dtype);

/// What a matrix product's or attention's coefficients multiply: 1, FLOPs, bytes, for a product the elements
/// of its two operands (packing, reading again), for attention its scores (exponentials) and 0, and the bytes
/// over what a core's own cache holds. Others have points over their bytes instead.
using kernels::kShapeTerms;
bool has_shape(const kernels::OpClass& what);
std::array<double, kShapeTerms> shape_terms(const kernels::OpClass& what, const kernels::Cost& cost);

/// Between points by powers, beyond the last in proportion to x, before the first no less than half of its
/// seconds.
double on_points(std::span<const double> points, double x);

/// Device and host. Between one busy device and all by how many there are.
double measured_seconds(const rank::RecordedOp& op, const parallel::MeasuredRates& rates);

/// Of a collective among `size` devices of a node, or a message; larger groups than were measured take longer
/// in proportion.
double measured_collective(const std::string& op, std::int64_t bytes, std::int64_t size,
                           const parallel::MeasuredRates& rates);

}  // namespace trainerd::core::plan
