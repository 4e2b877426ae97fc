#include "core/train/newton_schulz.h"

#include <algorithm>
#include <utility>

namespace trainerd::core::train {

using namespace kernels;

namespace {

constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f, kEps = 1e-7f;

}  // namespace

double newton_schulz_flops(std::int64_t rows, std::int64_t columns) {
  const double m = static_cast<double>(std::min(rows, columns)),
               n = static_cast<double>(std::max(rows, columns));
  return kNewtonSchulzSteps * 2 * m * m * (2 * n + m);
}

Tensor newton_schulz(Backend& backend, Stream& stream, const Tensor& x_MN, const Tensor& other_MN) {
  const std::int64_t M = x_MN.size(0);
  base::check(M <= x_MN.size(1) && other_MN.shape == x_MN.shape, "newton-schulz: no more rows than columns");
  const ArenaScope scope(stream.scratch());
  const Tensor gram_MM = stream.scratch().take(DType::f32, {M, M}, MemoryTerm::workspace),
               poly_MM = stream.scratch().take(DType::f32, {M, M}, MemoryTerm::workspace);
  Tensor x = x_MN, next = other_MN;
  backend.normalise(stream, {.x = x, .eps = kEps});
  for (int step = 0; step < kNewtonSchulzSteps; ++step) {
    backend.linear_fprop(stream,
                         {.x_TC = x, .weight = {x, {}}, .bias_N = {}, .addend_TN = {}, .y_TN = gram_MM});
    // poly = c (A A + b / c A): the GEMM accumulates.
    backend.scale(stream, {.x = gram_MM, .factor = kB / kC, .out = poly_MM});
    backend.linear_dgrad(
        stream, {.dy_TN = gram_MM, .weight = {gram_MM, {}}, .dx_TC = poly_MM, .mode = WriteMode::accumulate});
    backend.scale(stream, {.x = poly_MM, .factor = kC, .out = poly_MM});
    backend.scale(stream, {.x = x, .factor = kA, .out = next});
    backend.linear_dgrad(stream,
                         {.dy_TN = poly_MM, .weight = {x, {}}, .dx_TC = next, .mode = WriteMode::accumulate});
    std::swap(x, next);
  }
  return x;
}

}  // namespace trainerd::core::train
