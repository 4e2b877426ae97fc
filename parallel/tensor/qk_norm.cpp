#include "parallel/tensor/qk_norm.h"

#include "parallel/tensor/flow.h"

namespace trainerd::parallel {

using namespace kernels;

void qk_norm_rope_forward(const TensorParallel& tp, Stream& s, QkNormRopeForward a, HeadSums sums) {
  if (a.squares_T2.defined()) {
    a.ranks = tp.group.size();
    if (sums == HeadSums::made) {
      tp.backend.qk_norm_sums(s, {.heads = a.heads,
                                  .qkv_in = a.qkv_in,
                                  .positions_T = a.positions_T,
                                  .rope_table_SR = a.rope_table_SR,
                                  .q_weight_E = a.q_weight_E,
                                  .k_weight_E = a.k_weight_E,
                                  .weight_offset = a.weight_offset,
                                  .sums_T2 = a.squares_T2});
      sum_over(tp, s, a.squares_T2, "qk norm");
    }
  }
  tp.backend.qk_norm_rope_forward(s, a);
}

void qk_norm_rope_backward(const TensorParallel& tp, Stream& s, QkNormRopeBackward a) {
  if (!a.squares_T2.defined()) return tp.backend.qk_norm_rope_backward(s, a);
  const ArenaScope scope(s.scratch());
  a.ranks = tp.group.size();
  a.products_T2 = s.scratch().take(DType::f32, a.squares_T2.shape, MemoryTerm::activations);
  tp.backend.qk_norm_sums(s, {.heads = a.heads,
                              .qkv_in = a.qkv_in,
                              .dqkv = a.dqkv,
                              .positions_T = a.positions_T,
                              .rope_table_SR = a.rope_table_SR,
                              .q_weight_E = a.q_weight_E,
                              .k_weight_E = a.k_weight_E,
                              .weight_offset = a.weight_offset,
                              .sums_T2 = a.products_T2});
  sum_over(tp, s, a.products_T2, "qk norm backward");
  tp.backend.qk_norm_rope_backward(s, a);
}

}  // namespace trainerd::parallel
