#include "kernels/cpu/simd/vector_kernels.h"

#include "kernels/cpu/simd/vector_functions.h"

namespace trainerd::kernels::TRAINERD_SIMD {

const VectorKernels& vector_kernels() {
  static constexpr VectorKernels kTable{
      .glu_forward = glu_forward,
      .glu_backward = glu_backward,
      .gelu_forward = gelu_forward,
      .gelu_backward = gelu_backward,
      .add_norm_forward = add_norm_forward,
      .add_norm_backward = add_norm_backward,
      .qk_norm_rope_forward = qk_norm_rope_forward,
      .qk_norm_rope_backward = qk_norm_rope_backward,
      .sum_partials = sum_partials,
      .embedding_forward = embedding_forward,
      .embedding_row = embedding_row,
      .ce_stats = ce_stats,
      .ce_finish = ce_finish,
      .add = add,
      .scale = scale,
      .cast = cast,
      .square_sum = square_sum,
      .hash_words = hash_words,
      .adamw = adamw,
  };
  return kTable;
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
