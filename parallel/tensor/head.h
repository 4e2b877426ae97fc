#pragma once

#include <optional>

#include "parallel/tensor/linear.h"

namespace trainerd::parallel {

/// What is minimised instead of the tokens' cross entropy where samples are pairs of answers: as in
/// kernels::PreferenceLoss.
struct PreferenceTarget {
  std::int64_t pair_tokens = 0;  ///< rows of a pair
  float beta = 0;
  float label_smoothing = 0;
  kernels::Tensor reference_P2;
  kernels::Tensor logps_P2;
  kernels::Tensor loss = {};  ///< optional, as `rewards`
  kernels::Tensor rewards = {};
};

/// The output head and the loss, in chunks of tokens: logits, softmax statistics, loss, and the gradient in
/// place of the logits, so that no more than one chunk of logits exists at a time, in the activations' dtype,
/// in scratch. With `dy_TD` defined it also makes the head's gradients: the logits of a chunk never exist
/// twice, so the weight's gradient is finished here too. A rank's logits are rows [first_row, first_row + V /
/// tp) of the vocabulary; their softmax is that of all ranks, from three reductions of one number per token
/// (Megatron-LM, section 3), so that no logits are gathered.
///
/// Of pairs the gradient of every token depends on the losses of all: a pair's chunks go through the first
/// GEMM for their statistics, which are kept, and again for their gradients, but for the last, whose logits
/// are still there. A chunk holds whole pairs where one fits: then no logits are made twice. `loss_T` is
/// overwritten with numbers of no use.
struct HeadLoss {
  kernels::Tensor y_TD;   ///< a flow
  kernels::Weight fprop;  ///< [V, D]
  kernels::Weight dgrad;
  kernels::Tensor targets_T;
  kernels::Tensor loss_weight_T;
  std::int64_t first_row = 0;
  std::int64_t vocab = 0;
  float softcap = 0;  ///< of the logits; 0: none
  float grad_scale = 0;
  float label_smoothing = 0;      ///< as in kernels::CeStats
  float z_loss = 0;               ///< as in kernels::CeFinish
  kernels::Tensor loss_T;         ///< f32
  kernels::Tensor z_loss_T = {};  ///< f32; undefined without z_loss
  std::optional<PreferenceTarget> preference = {};
  kernels::Tensor dy_TD;       ///< optional; a flow
  kernels::Tensor dweight_VD;  ///< optional: none of a weight that stays as it is
  kernels::WriteMode mode = kernels::WriteMode::accumulate;
};
void vocab_parallel_head_loss(const TensorParallel&, kernels::Stream&, const HeadLoss&);

/// The head of one rank: its rows of the vocabulary, the hidden size, and the logits' dtype.
struct HeadShape {
  std::int64_t vocab_rows = 0, hidden = 0;
  kernels::DType dtype = kernels::DType::f32;
};

/// Tokens of one chunk of the head: large enough that reading and writing the weight's gradient once a chunk
/// is cheap, small enough that a chunk's logits stay within a fixed number of bytes: 32 MiB on a CPU, 1 GiB
/// on a GPU, whose GEMMs want thousands of rows. There, of the upper half of what fits, the size whose input
/// gradients, the products with the fewest output tiles, leave the fewest multiprocessors idle. A tuning that
/// says how many tokens is taken as it is.
std::int64_t head_chunk_tokens(std::int64_t tokens, const HeadShape& head, const kernels::Target& target);

}  // namespace trainerd::parallel
