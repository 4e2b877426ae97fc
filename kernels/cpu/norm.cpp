#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/vector_kernels.h"
#include "kernels/cpu/tiling/blocks.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {
namespace {

// Columns per block when partial sums are added.
constexpr std::int64_t kColumns = 256;

}  // namespace

void CpuBackend::add_norm_forward(Stream&, const AddNormForward& a) {
  const std::int64_t tokens = a.residual_TD.size(0), d = a.residual_TD.size(1);
  base::check(a.y_TD.numel() == tokens * d && a.weight_D.numel() == d,
              "norm: shapes of input, output and weight");
  base::check(!a.bias_D.defined() || a.bias_D.dtype == a.weight_D.dtype,
              "norm: weight and bias have one dtype");
  check_weights(a.residual_TD.dtype, a.weight_D.dtype);
  for_each_block(pool_, tokens, rows_per_block(d),
                 [&](std::int64_t begin, std::int64_t end) { vector_.add_norm_forward(a, begin, end); });
}

void CpuBackend::add_norm_backward(Stream& stream, const AddNormBackward& a) {
  const std::int64_t tokens = a.sum_TD.size(0), d = a.sum_TD.size(1);
  base::check(a.dx_TD.numel() == tokens * d && a.dy_TD.numel() == tokens * d && a.dweight_D.numel() == d,
              "norm: shapes of the gradients");
  check_weights(a.sum_TD.dtype, a.weight_D.dtype);
  const ArenaScope scope(stream.scratch());
  auto* partial =
      reinterpret_cast<float*>(stream.scratch().take_bytes(scratch_bytes(a, target_), MemoryTerm::workspace));
  const SumBlocks blocks = sum_blocks(tokens);
  const std::int64_t stride = align_up(d * 4) / 4;
  float* bias_partial = a.dbias_D.defined() ? partial + blocks.count * stride : nullptr;
  pool_.run(blocks.count, [&](std::int64_t block, int) {
    const std::int64_t begin = block * blocks.rows, end = std::min(tokens, begin + blocks.rows);
    vector_.add_norm_backward(a, begin, end, partial + block * stride,
                              bias_partial == nullptr ? nullptr : bias_partial + block * stride);
  });
  for_each_block(pool_, d, kColumns, [&](std::int64_t begin, std::int64_t end) {
    vector_.sum_partials(partial + begin, blocks.count, stride, end - begin, a.dweight_D.dtype,
                         a.dweight_D.data + begin * size_of(a.dweight_D.dtype), a.mode);
    if (bias_partial != nullptr)
      vector_.sum_partials(bias_partial + begin, blocks.count, stride, end - begin, a.dbias_D.dtype,
                           a.dbias_D.data + begin * size_of(a.dbias_D.dtype), a.mode);
  });
}

}  // namespace trainerd::kernels
