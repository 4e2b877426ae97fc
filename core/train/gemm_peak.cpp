#include "core/train/gemm_peak.h"

#include <algorithm>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/cost.h"
#include "kernels/memory.h"

namespace trainerd::core {

using namespace kernels;

double measure_gemm_peak(Backend& backend, DType dtype) {
  constexpr std::int64_t kSize = 1024;
  constexpr double kSeconds = 0.08;
  const std::int64_t matrix = kSize * kSize * size_of(dtype);
  const Tensor shape{nullptr, dtype, {kSize, kSize}};
  const PrepareWeight prepare{.plain_NC = shape, .role = GemmRole::fprop, .tokens = kSize, .out = {}};
  const std::int64_t prepared = backend.prepared_bytes(prepare);
  LinearFprop gemm{.x_TC = shape, .weight = {shape, {}}, .bias_N = {}, .addend_TN = {}, .y_TN = shape};
  const std::int64_t scratch_size =
      align_up(std::max(scratch_bytes(gemm, backend.target()), scratch_bytes(prepare, backend.target())));
  const Buffer buffer = backend.allocate(MemoryKind::device, 3 * align_up(matrix) + align_up(prepared) + 2 * scratch_size);
  Arena arena("gemm_peak", buffer.data(), buffer.bytes());
  const Tensor x = arena.take(dtype, {kSize, kSize}, MemoryTerm::workspace);
  const Tensor w = arena.take(dtype, {kSize, kSize}, MemoryTerm::workspace);
  const Tensor y = arena.take(dtype, {kSize, kSize}, MemoryTerm::workspace);
  const auto stream = backend.make_stream("gemm_peak", &arena);
  gemm = {.x_TC = x, .weight = {w, {}}, .bias_N = {}, .addend_TN = {}, .y_TN = y};
  if (prepared > 0) {
    gemm.weight.prepared = arena.take(DType::u8, {prepared}, MemoryTerm::workspace);
    backend.prepare_weight(*stream, {.plain_NC = w, .role = GemmRole::fprop, .tokens = kSize, .out = gemm.weight.prepared});
  }
  const auto from = backend.make_event(), to = backend.make_event();
  std::vector<double> seconds;
  backend.linear_fprop(*stream, gemm);  // first use makes the primitive
  for (const double start = base::monotonic_seconds(); base::monotonic_seconds() - start < kSeconds || seconds.size() < 5;) {
    backend.record(*stream, *from);
    backend.linear_fprop(*stream, gemm);
    backend.record(*stream, *to);
    backend.wait_host(*to);
    seconds.push_back(backend.elapsed_seconds(*from, *to));
  }
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  const double median = seconds[seconds.size() / 2];
  return median > 0 ? cost(gemm, backend.target()).flops / median : 0.0;
}

}  // namespace trainerd::core
