#pragma once

// The communicating operators of tensor parallelism: what a layer calls in place of a GEMM, so that no layer
// names a communicator. (Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3: column- then row-parallel
// linears.) A column-parallel linear holds rows of the weight [N/tp, C]; its input gradient is a sum over tp.
// A row-parallel linear holds columns [N, C/tp]; its output is a sum over tp.

#include <optional>

#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"
#include "parallel/tensor/adapter.h"

namespace trainerd::parallel {

/// Where tensor-parallel work runs: the device and the tp group. With `sequence_parallel` (Korthikanti et
/// al., Reducing Activation Recomputation in Large Transformer Models, arXiv 2205.05198, section 4.2) what
/// flows between layers is cut along the tokens: rank r of n holds rows [r T / n, (r + 1) T / n). Below,
/// "flow" is a tensor of those rows, or of all T rows without it; the sums over tp become reduce-scatters,
/// and all-gathers bring the rows together before a GEMM.
struct TensorParallel {
  kernels::Backend& backend;
  Communicator& group;
  bool sequence_parallel = false;
  /// Pieces of about as many rows that a gather before a GEMM, or a sum after one, is made of. From two on
  /// they are in the background of the GEMM, which goes piece by piece; the results are the same bit for bit,
  /// because a row of a GEMM's result does not depend on the rows beside it. Weight gradients, sums over all
  /// rows, stay whole.
  std::int64_t overlap_chunks = 1;
  /// A column-parallel linear's backward gathers its input behind the input gradient's GEMM, and sums that
  /// behind the weight gradient's (Korthikanti et al., section 4.2.2), or with chunks behind its own.
  bool overlap_backward = false;

  /// Rows of a flow of `tokens` tokens on one rank.
  std::int64_t flow_rows(std::int64_t tokens) const {
    return sequence_parallel ? tokens / group.size() : tokens;
  }
};

// With an adapter (adapter.h) of a weight that stays as it is: `adapter` adds its part to an output or an
// input gradient, and its gradients take the place of the weight's.

/// x is a flow.
void column_linear(const TensorParallel&, kernels::Stream&, const kernels::LinearFprop&,
                   const Adapter* adapter = nullptr);
/// dx is a flow, assigned.
void column_linear_dgrad(const TensorParallel&, kernels::Stream&, const kernels::LinearDgrad&,
                         const Adapter* adapter = nullptr);
/// x is a flow.
void column_linear_wgrad(const TensorParallel&, kernels::Stream&, const kernels::LinearWgrad&);
void column_linear_wgrad(const TensorParallel&, kernels::Stream&, const AdapterWgrad&);
void column_linear_swiglu(const TensorParallel&, kernels::Stream&, const kernels::LinearSwiglu&);
/// Both, the input's gradient first.
void column_linear_backward(const TensorParallel&, kernels::Stream&, const kernels::LinearDgrad&,
                            const kernels::LinearWgrad&);
void column_linear_backward(const TensorParallel&, kernels::Stream&, const kernels::LinearDgrad&,
                            const AdapterWgrad&);
/// y is a flow. A bias or addend is whole on every rank; the first adds it, so that the sum has it once.
void row_linear(const TensorParallel&, kernels::Stream&, const kernels::LinearFprop&,
                const Adapter* adapter = nullptr);
/// dy is a flow. With `wgrad`, of the same dy, the weight's gradient is made next: dy is gathered once,
/// unless it comes in chunks.
void row_linear_dgrad(const TensorParallel&, kernels::Stream&, const kernels::LinearDgrad&,
                      const std::optional<kernels::LinearWgrad>& wgrad = {});
void row_linear_dgrad(const TensorParallel&, kernels::Stream&, const kernels::LinearDgrad&, const Adapter&,
                      const std::optional<AdapterWgrad>& wgrad);
void row_linear_dgrad_swiglu(const TensorParallel&, kernels::Stream&, const kernels::LinearDgradSwiglu&,
                             const std::optional<kernels::LinearWgrad>& wgrad = {});
void row_linear_wgrad(const TensorParallel&, kernels::Stream&, const kernels::LinearWgrad&);
void row_linear_wgrad(const TensorParallel&, kernels::Stream&, const AdapterWgrad&);
/// Each rank holds rows [first_row, first_row + V/tp) of the table; the sum over tp completes every token.
/// `out` is a flow.
void vocab_parallel_embedding(const TensorParallel&, kernels::Stream&, const kernels::EmbeddingForward&);
/// dout is a flow.
void vocab_parallel_embedding_backward(const TensorParallel&, kernels::Stream&,
                                       const kernels::EmbeddingBackward&);

}  // namespace trainerd::parallel
