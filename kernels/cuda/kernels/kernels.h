#pragma once

// The launchers of our own kernels: one free function for each operator of ops.h that no library serves, in a .cu file by
// subject. Each checks what its kernel relies on, launches on the stream given and returns at once; an empty input launches
// nothing. Scratch is `scratch_bytes(args, target)` long (scratch.h), aligned to kAlignment, and not cleared.

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/ops/ops.h"
#include "kernels/target/cuda_limits.h"
#include "kernels/target/target.h"

namespace trainerd::kernels::cuda {

/// Where a launcher runs: the stream, the device's properties (`sm_version`, `sm_count`), and the call's scratch.
struct Launch {
  cudaStream_t stream = nullptr;
  const Target& target;
  std::byte* scratch = nullptr;
};

// glu.cu
void glu_forward(const Launch&, const GluForward&);
void glu_backward(const Launch&, const GluBackward&);
void gelu_forward(const Launch&, const GeluForward&);
void gelu_backward(const Launch&, const GeluBackward&);

// embedding.cu
void embedding_forward(const Launch&, const EmbeddingForward&);
void embedding_backward(const Launch&, const EmbeddingBackward&);

// norm.cu
void add_norm_forward(const Launch&, const AddNormForward&);
void add_norm_backward(const Launch&, const AddNormBackward&);

// rope.cu
void rope_table(const Launch&, const RopeTable&);
void qk_norm_rope_forward(const Launch&, const QkNormRopeForward&);
void qk_norm_rope_backward(const Launch&, const QkNormRopeBackward&);

// loss.cu
void ce_stats(const Launch&, const CeStats&);
void ce_rescale(const Launch&, const CeRescale&);
void ce_finish(const Launch&, const CeFinish&);

// elementwise.cu
void add(const Launch&, const Add&);
void scale(const Launch&, const Scale&);
void cast(const Launch&, const Cast&);

// reduce.cu. The spans of TotalSquareSum are host memory: they may change when the launcher has returned.
void block_square_sums(const Launch&, const BlockSquareSums&);
void total_square_sum(const Launch&, const TotalSquareSum&);
void ordered_sum(const Launch&, const OrderedSum&);
void tensor_hash(const Launch&, const TensorHash&);

// update.cu. The ranges of AdamwUpdate are host memory: they may change when the launcher has returned.
void step_control(const Launch&, const StepControl&);
void adamw_update(const Launch&, const AdamwUpdate&);

// init.cu
void init_normal(const Launch&, const InitNormal&);

// attention.cu, attention_backward.cu: where no library serves; fp32 or bf16, deterministic. On tensor cores (attention_mma.cu) where
// the heads are bf16, of a multiple of 8 and at most 128 elements; else by fp32 FMAs, slow.
void attention_forward(const Launch&, const AttentionForward&);
void attention_backward(const Launch&, const AttentionBackward&);

/// out[b, a, c] = x[a, b, c], fp32.
struct SwapLeading {
  Tensor x_ABC;
  Tensor out_BAC;
};
void swap_leading(const Launch&, const SwapLeading&);

/// out[n] (+)= sum over t of x[t, n], in fp32 and in an order that the shape alone fixes.
struct ColumnSums {
  Tensor x_TN;
  Tensor out_N;  ///< f32 or bf16
  WriteMode mode = WriteMode::assign;
};
// partials.cu
void column_sums(const Launch&, const ColumnSums&);

/// out (+)= x: what a GEMM could not write in the dtype of `out` itself.
struct Accumulate {
  Tensor x;    ///< f32
  Tensor out;  ///< bf16
  WriteMode mode = WriteMode::assign;
};
void accumulate(const Launch&, const Accumulate&);

}  // namespace trainerd::kernels::cuda
