#pragma once

#include <optional>

#include "parallel/tensor/linear.h"

namespace trainerd::parallel {

/// The loss for samples that are pairs of answers, in place of the cross entropy of tokens. See
/// kernels::PreferenceLoss.
struct PreferenceTarget {
  std::int64_t pair_tokens = 0;  ///< rows per pair
  float beta = 0;
  float label_smoothing = 0;
  kernels::Tensor reference_P2;
  kernels::Tensor logps_P2;
  kernels::Tensor loss = {};  ///< optional, like `rewards`
  kernels::Tensor rewards = {};
};

/// The output head and the loss, in chunks of tokens: logits, softmax statistics, loss, and the gradient in
/// place of the logits. Only one chunk of logits exists at a time, in scratch, in the activations' dtype.
/// With `dy_TD` defined it also computes the head's gradients, including the weight's, so that no logits need
/// to be computed again. A rank's logits are rows [first_row, first_row + V / tp) of the vocabulary. Their
/// softmax covers all ranks: it needs three reductions of one number per token (Megatron-LM, section 3), and
/// no gather of logits.
///
/// For pairs the gradient of every token depends on the losses of the whole pair. The chunks of a pair go
/// through the first GEMM once for their statistics, which are kept, and once more for their gradients. The
/// last chunk goes through it once, because its logits still exist. If a pair fits in a chunk, chunks hold
/// whole pairs and no logits are computed twice. With pairs the final values of `loss_T` are meaningless.
struct HeadLoss {
  kernels::Tensor y_TD;   ///< a flow
  kernels::Weight fprop;  ///< [V, D]
  kernels::Weight dgrad;
  kernels::Tensor targets_T;
  kernels::Tensor loss_weight_T;
  std::int64_t first_row = 0;
  std::int64_t vocab = 0;
  float softcap = 0;  ///< 0: no softcap of the logits
  float grad_scale = 0;
  kernels::Tensor loss_scale = {};  ///< f32 [1], optional: another factor of the gradient
  float label_smoothing = 0;        ///< as in kernels::CeStats
  float z_loss = 0;                 ///< as in kernels::CeFinish
  kernels::Tensor loss_T;           ///< f32
  kernels::Tensor z_loss_T = {};    ///< f32; undefined without z_loss
  std::optional<PreferenceTarget> preference = {};
  kernels::Tensor dy_TD;       ///< optional; a flow
  kernels::Tensor dweight_VD;  ///< optional: undefined for a frozen weight
  kernels::WriteMode mode = kernels::WriteMode::accumulate;
};
void vocab_parallel_head_loss(const TensorParallel&, kernels::Stream&, const HeadLoss&);

/// Size of the head on one rank: its rows of the vocabulary, the hidden size, and the logits' dtype.
struct HeadShape {
  std::int64_t vocab_rows = 0, hidden = 0;
  kernels::DType dtype = kernels::DType::f32;
};

/// Tokens per chunk of the head. Large enough that reading and writing the weight's gradient once per chunk
/// is cheap, and small enough to limit a chunk's logits to 32 MiB on a CPU and 1 GiB on a GPU, whose GEMMs
/// need thousands of rows. On a GPU it is the size in the upper half of that range for which the input
/// gradients, the products with the fewest output tiles, leave the fewest multiprocessors idle. A tuning's
/// number of tokens overrides this.
std::int64_t head_chunk_tokens(std::int64_t tokens, const HeadShape& head, const kernels::Target& target);

}  // namespace trainerd::parallel
