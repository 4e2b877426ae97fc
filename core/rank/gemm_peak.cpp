#include "core/rank/gemm_peak.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/cost/cost.h"
#include "kernels/memory/memory.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::core::rank {

using namespace kernels;

namespace {

double best_seconds(Backend& backend, Stream& stream, const LinearFprop& gemm) {
  constexpr double kSeconds = 0.025;
  constexpr int kMinRepeats = 4;
  // Stop after this many repeats within 1% of the best: disturbances do not slow all repeats equally.
  constexpr int kAgreeing = 3;
  const auto from = backend.make_event(), to = backend.make_event();
  double best = std::numeric_limits<double>::infinity();
  std::vector<double> seconds;
  const auto agreeing = [&] {
    return std::count_if(seconds.begin(), seconds.end(), [&](double s) { return s < 1.01 * best; });
  };
  backend.linear_fprop(stream, gemm);  // the first use creates the primitive
  const double start = base::monotonic_seconds();
  while (seconds.size() < kMinRepeats ||
         (base::monotonic_seconds() - start < kSeconds && agreeing() < kAgreeing)) {
    backend.record(stream, *from);
    backend.linear_fprop(stream, gemm);
    backend.record(stream, *to);
    backend.wait_host(*to);
    seconds.push_back(backend.elapsed_seconds(*from, *to));
    best = std::min(best, seconds.back());
  }
  return best;
}

}  // namespace

double gemm_rate(Backend& backend, DType dtype, std::int64_t size) {
  const std::int64_t matrix = size * size * size_of(dtype);
  const Tensor shape{nullptr, dtype, {size, size}};
  const PrepareWeight prepare{.plain_NC = shape, .role = GemmRole::fprop, .tokens = size, .out = {}};
  const std::int64_t prepared = backend.prepared_bytes(prepare);
  LinearFprop gemm{.x_TC = shape, .weight = {shape, {}}, .bias_N = {}, .addend_TN = {}, .y_TN = shape};
  const std::int64_t scratch_size =
      align_up(std::max(scratch_bytes(gemm, backend.target()), scratch_bytes(prepare, backend.target())));
  const Buffer buffer =
      backend.allocate(MemoryKind::device, 3 * align_up(matrix) + align_up(prepared) + 2 * scratch_size);
  Arena arena("gemm_peak", buffer.data(), buffer.bytes());
  const Tensor x = arena.take(dtype, {size, size}, MemoryTerm::workspace);
  const Tensor w = arena.take(dtype, {size, size}, MemoryTerm::workspace);
  const Tensor y = arena.take(dtype, {size, size}, MemoryTerm::workspace);
  const auto stream = backend.make_stream("gemm_peak", &arena);
  gemm = {.x_TC = x, .weight = {w, {}}, .bias_N = {}, .addend_TN = {}, .y_TN = y};
  if (prepared > 0) {
    gemm.weight.prepared = arena.take(DType::u8, {prepared}, MemoryTerm::workspace);
    backend.prepare_weight(
        *stream, {.plain_NC = w, .role = GemmRole::fprop, .tokens = size, .out = gemm.weight.prepared});
  }
  const double best = best_seconds(backend, *stream, gemm);
  return best > 0 ? cost(gemm, backend.target()).flops / best : 0.0;
}

double measure_gemm_peak(Backend& backend, DType dtype) {
  constexpr std::int64_t kSmallest = 512, kLargest = 4096;
  constexpr double kLongEnough = 5e-4;
  double peak = 0;
  for (std::int64_t size = kSmallest; size <= kLargest; size *= 2) {
    const double rate = gemm_rate(backend, dtype, size), n = static_cast<double>(size);
    peak = std::max(peak, rate);
    if (rate <= 0 || 2 * n * n * n >= kLongEnough * rate) break;
  }
  return peak;
}

PeakRate peak_of(const parallel::Topology& topology, Backend& backend, DType compute, double measured) {
  if (topology.device.kind != DeviceKind::cpu)
    return {compute == DType::f32 ? topology.peak.fp32 : topology.peak.bf16, nullptr};
  const auto measure = [&backend, compute] { return measure_gemm_peak(backend, compute); };
  return {measured > 0 ? measured : measure(), measure};
}

bool PeakRate::raise_to(double reached) {
  if (!measured() || peak_ <= 0 || reached <= peak_) return false;
  peak_ = std::max({peak_, reached, measure_()});
  return true;
}

bool PeakRate::worth_telling() {
  constexpr double kMuchMore = 1.25;
  if (peak_ < kMuchMore * told_) return false;
  told_ = peak_;
  return true;
}

}  // namespace trainerd::core::rank
