#include "core/plan/cost/measured_cost.h"

#include <algorithm>
#include <cmath>

#include "core/plan/cost/cost_model.h"
#include "kernels/base/error.h"

namespace trainerd::core::plan {
namespace {

using kernels::OpClass;
using kernels::Operator;
using parallel::MeasuredRates;

/// Second-level caches of server cores hold 1 to 2 MiB.
constexpr double kCoreCacheBytes = 1 << 20;

double on_curve(const rank::RecordedOp& op, const MeasuredRates::Operators& curves) {
  if (const auto own = curves.find(curve_of(op.op, op.what)); own != curves.end()) {
    if (!has_shape(op.what)) return on_points(own->second, op.cost.bytes);
    const auto terms = shape_terms(op.what, op.cost);
    double seconds = 0;
    for (std::size_t i = 0; i < kShapeTerms && i < own->second.size(); ++i)
      seconds += own->second[i] * terms[i];
    if (const auto other = curves.find(other_curve(op.what.dtype)); other != curves.end())
      seconds += rounding_bytes(op.what) > 0 ? on_points(other->second, rounding_bytes(op.what)) : 0;
    return seconds;
  }
  if (has_shape(op.what))
    throw base::spec_error("the cluster file has no curve for " + curve_of(op.op, op.what) +
                           ": make it anew with `trainerd calibrate`");
  const auto other = curves.find(other_curve(op.what.dtype));
  return other == curves.end() ? 0 : on_points(other->second, op.cost.bytes);
}

}  // namespace

std::string curve_of(kernels::Operator op, const OpClass& what) {
  // On a CPU each expert's product is a linear layer's.
  if (op == Operator::expert_fprop) op = Operator::linear_fprop;
  if (op == Operator::expert_dgrad) op = Operator::linear_dgrad;
  if (op == Operator::expert_wgrad) op = Operator::linear_wgrad;
  return std::string(name_of(op)) + "." + kernels::name_of(what.dtype);
}

std::string other_curve(kernels::DType dtype) { return std::string("other.") + kernels::name_of(dtype); }

bool has_shape(const OpClass& what) { return what.kind != OpClass::Kind::memory; }

std::array<double, kShapeTerms> shape_terms(const OpClass& what, const kernels::Cost& cost) {
  const double beyond = std::max(0.0, cost.bytes - kCoreCacheBytes);
  if (what.kind == OpClass::Kind::gemm || what.kind == OpClass::Kind::experts)
    return {1, cost.flops, cost.bytes, real(what.m) * real(what.k), real(what.n) * real(what.k), beyond};
  return {1,          cost.flops,
          cost.bytes, real(what.sequences) * real(what.heads) * real(what.length) * real(what.key_length),
          0,          beyond};
}

double on_points(std::span<const double> points, double x) {
  base::check(points.size() >= 2 && points.size() % 2 == 0, "a curve is pairs of x and seconds");
  const std::size_t last = points.size() - 2;
  if (x >= points[last]) return points[last + 1] * x / points[last];
  if (x <= points[0]) return points[1] * std::max(0.5, x / points[0]);
  std::size_t i = 2;
  while (points[i] < x) i += 2;
  const double part = std::log(x / points[i - 2]) / std::log(points[i] / points[i - 2]);
  return points[i - 1] * std::pow(points[i + 1] / points[i - 1], part);
}

double measured_seconds(const rank::RecordedOp& op, const MeasuredRates& rates) {
  const double alone = on_curve(op, rates.alone);
  double seconds = alone;
  if (rates.busy > 1 && !rates.crowded.empty()) {
    const double crowd =
        std::min(1.0, real(rates.busy - 1) / real(std::max<std::int64_t>(1, rates.devices - 1)));
    seconds += crowd * (on_curve(op, rates.crowded) - alone);
  }
  return seconds + rates.operator_seconds;
}

double measured_collective(const std::string& op, std::int64_t bytes, std::int64_t size,
                           const MeasuredRates& rates) {
  const auto at = rates.collectives.find(op);
  if (at == rates.collectives.end())
    throw base::spec_error(
        "the cluster file has no time of " + op +
        " over shared memory: make it anew with `trainerd calibrate --ranks N`, N the devices of a node");
  return on_points(at->second, real(bytes)) * std::max(1.0, real(size) / real(rates.devices));
}

}  // namespace trainerd::core::plan
