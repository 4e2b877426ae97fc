#pragma once

// The communicating operators of tensor parallelism: what a layer calls in place of a GEMM, so that no layer names a
// communicator. (Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3: column- then row-parallel linears.)
// A column-parallel linear holds rows of the weight [N/tp, C]; its input gradient is a sum over tp.
// A row-parallel linear holds columns [N, C/tp]; its output is a sum over tp.
// Weight gradients need no communication: call the Backend.

#include "kernels/backend.h"
#include "parallel/communicator.h"

namespace trainerd::parallel {

/// Where tensor-parallel work runs: the device and the tp group.
struct TensorParallel {
  kernels::Backend& backend;
  Communicator& group;
};


void column_linear(const TensorParallel&, kernels::Stream&, const kernels::LinearFprop&);
void column_linear_dgrad(const TensorParallel&, kernels::Stream&, const kernels::LinearDgrad&);
void column_linear_swiglu(const TensorParallel&, kernels::Stream&, const kernels::LinearSwiglu&);
/// A bias or addend is whole on every rank; the first adds it, so that the sum has it once.
void row_linear(const TensorParallel&, kernels::Stream&, const kernels::LinearFprop&);
void row_linear_dgrad(const TensorParallel&, kernels::Stream&, const kernels::LinearDgrad&);
void row_linear_dgrad_swiglu(const TensorParallel&, kernels::Stream&, const kernels::LinearDgradSwiglu&);
/// Each rank holds rows [first_row, first_row + V/tp) of the table; the sum over tp completes every token.
void vocab_parallel_embedding(const TensorParallel&, kernels::Stream&, const kernels::EmbeddingForward&);

/// The output head and the loss, in chunks of tokens: logits, softmax statistics, loss, and the gradient in place of the
/// logits, so that no more than one chunk of logits exists at a time, in the activations' dtype, in scratch.
/// With `dy_TD` defined it also makes the head's gradients: the logits of a chunk never exist twice, so the weight's
/// gradient is finished here too. A rank's logits are rows [first_row, first_row + V / tp) of the vocabulary; their softmax is
/// that of all ranks, from three reductions of one number a token (Megatron-LM, section 3), so that no logits are gathered.
struct HeadLoss {
  kernels::Tensor y_TD;
  kernels::Weight fprop;  ///< [V, D]
  kernels::Weight dgrad;
  kernels::Tensor targets_T;
  kernels::Tensor loss_weight_T;
  std::int64_t first_row = 0;
  std::int64_t vocab = 0;
  float grad_scale = 0;
  kernels::Tensor loss_T;  ///< f32
  kernels::Tensor dy_TD;   ///< optional
  kernels::Tensor dweight_VD;
  kernels::WriteMode mode = kernels::WriteMode::accumulate;
};
void vocab_parallel_head_loss(const TensorParallel&, kernels::Stream&, const HeadLoss&);

/// Tokens of one chunk of the head: large enough that reading and writing the weight's gradient once a chunk is cheap,
/// small enough that a chunk's logits stay within a fixed number of bytes.
std::int64_t head_chunk_tokens(std::int64_t tokens, std::int64_t vocab_rows, kernels::DType dtype);

}  // namespace trainerd::parallel
