#include <cmath>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/vector_kernels.h"
#include "kernels/cpu/tiling/blocks.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {
namespace {

void check_heads(const HeadGeometry& heads, const Tensor& qkv, const Tensor& rope_table_SR,
                 const Tensor& q_weight_E, const Tensor& k_weight_E) {
  base::check(qkv.size(-1) == heads.columns() && heads.values_size() == heads.head_size,
              "qk norm: columns of qkv against the head geometry");
  rotated_elements(rope_table_SR, heads);
  base::check(q_weight_E.defined() == k_weight_E.defined() &&
                  (!q_weight_E.defined() || q_weight_E.dtype == k_weight_E.dtype),
              "qk norm: both weights or none, of one dtype");
  if (q_weight_E.defined()) check_weights(qkv.dtype, q_weight_E.dtype);
}

}  // namespace

void CpuBackend::rope_table(Stream&, const RopeTable& a) {
  const std::int64_t positions = a.table_SR.size(0), r = a.table_SR.size(1);
  base::check(std::cmp_equal(2 * a.frequencies.size(), r), "rope: a frequency for each pair that is rotated");
  float* table = a.table_SR.as<float>();
  pool_.run(r / 2, [&](std::int64_t i, int) {
    const double frequency = a.frequencies[static_cast<std::size_t>(i)];
    for (std::int64_t s = 0; s < positions; ++s) {
      const double angle = static_cast<double>(s) * frequency;
      table[s * r + i] = static_cast<float>(a.factor * std::cos(angle));
      table[s * r + r / 2 + i] = static_cast<float>(a.factor * std::sin(angle));
    }
  });
}

void CpuBackend::qk_norm_rope_forward(Stream&, const QkNormRopeForward& a) {
  check_heads(a.heads, a.qkv_in, a.rope_table_SR, a.q_weight_E, a.k_weight_E);
  check_rank_sums(a.span, a.squares_T2, a.qkv_in.size(0), a.ranks);
  for_each_block(pool_, a.qkv_in.size(0), rows_per_block(a.heads.columns()),
                 [&](std::int64_t begin, std::int64_t end) { vector_.qk_norm_rope_forward(a, begin, end); });
}

void CpuBackend::qk_norm_sums(Stream&, const QkNormSums& a) {
  check_heads(a.heads, a.qkv_in, a.rope_table_SR, a.q_weight_E, a.k_weight_E);
  check_rank_sums(QkNormSpan::all, a.sums_T2, a.qkv_in.size(0), 2);
  for_each_block(pool_, a.qkv_in.size(0), rows_per_block(a.heads.columns()),
                 [&](std::int64_t begin, std::int64_t end) { vector_.qk_norm_sums(a, begin, end); });
}

void CpuBackend::qk_norm_rope_backward(Stream& stream, const QkNormRopeBackward& a) {
  check_heads(a.heads, a.dqkv, a.rope_table_SR, a.q_weight_E, a.k_weight_E);
  const std::int64_t tokens = a.dqkv.size(0), e = a.heads.head_size;
  if (!a.q_weight_E.defined()) {
    for_each_block(pool_, tokens, rows_per_block(a.heads.columns()),
                   [&](std::int64_t begin, std::int64_t end) {
                     vector_.qk_norm_rope_backward(a, begin, end, nullptr, nullptr);
                   });
    return;
  }
  const std::int64_t q = norm_elements(a.span, a.heads.heads, e),
                     k = norm_elements(a.span, a.heads.kv_heads, e);
  base::check(a.q_weight_E.numel() == q && a.k_weight_E.numel() == k && a.dq_weight_E.numel() == q &&
                  a.dk_weight_E.numel() == k,
              "qk norm: shapes of the weights and their gradients");
  check_rank_sums(a.span, a.squares_T2, tokens, a.ranks);
  check_rank_sums(a.span, a.products_T2, tokens, a.ranks);
  const ArenaScope scope(stream.scratch());
  auto* q_partial =
      reinterpret_cast<float*>(stream.scratch().take_bytes(scratch_bytes(a, target_), MemoryTerm::workspace));
  const SumBlocks blocks = sum_blocks(tokens);
  const std::int64_t q_stride = align_up(q * 4) / 4, k_stride = align_up(k * 4) / 4;
  float* k_partial = q_partial + blocks.count * q_stride;
  pool_.run(blocks.count, [&](std::int64_t block, int) {
    const std::int64_t begin = block * blocks.rows, end = std::min(tokens, begin + blocks.rows);
    vector_.qk_norm_rope_backward(a, begin, end, q_partial + block * q_stride, k_partial + block * k_stride);
  });
  vector_.sum_partials(q_partial, blocks.count, q_stride, q, a.dq_weight_E.dtype, a.dq_weight_E.data, a.mode);
  vector_.sum_partials(k_partial, blocks.count, k_stride, k, a.dk_weight_E.dtype, a.dk_weight_E.data, a.mode);
}

void CpuBackend::latent_heads_forward(Stream&, const LatentHeadsForward& a) {
  check_args(a);
  for_each_block(pool_, a.qkv.size(0), rows_per_block(a.heads.columns()),
                 [&](std::int64_t begin, std::int64_t end) { vector_.latent_heads_forward(a, begin, end); });
}

void CpuBackend::latent_heads_backward(Stream&, const LatentHeadsBackward& a) {
  check_args(a);
  for_each_block(pool_, a.dqkv.size(0), rows_per_block(a.heads.columns()),
                 [&](std::int64_t begin, std::int64_t end) { vector_.latent_heads_backward(a, begin, end); });
}

}  // namespace trainerd::kernels
