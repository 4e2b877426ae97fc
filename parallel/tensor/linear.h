#pragma once

// The communicating operators of tensor parallelism. Layers call them instead of a GEMM, and so do not name a
// communicator. (Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3: column- then row-parallel
// linears.) A column-parallel linear holds rows of the weight [N/tp, C]; its input gradient is a sum over tp.
// A row-parallel linear holds columns [N, C/tp]; its output is a sum over tp.

#include <functional>
#include <optional>

#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"
#include "parallel/tensor/adapter.h"

namespace trainerd::parallel {

/// The device and the tp group of tensor-parallel work. With `sequence_parallel` (Korthikanti et al.,
/// Reducing Activation Recomputation in Large Transformer Models, arXiv 2205.05198, section 4.2) tensors
/// between layers are divided along the tokens: rank r of n holds rows [r T / n, (r + 1) T / n). Below,
/// "flow" is a tensor of those rows, or of all T rows without it. Sums over tp then become reduce-scatters,
/// and an all-gather collects all rows before a GEMM.
struct TensorParallel {
  kernels::Backend& backend;
  Communicator& group;
  bool sequence_parallel = false;
  /// Number of pieces, of about equal rows, of a gather before a GEMM or a sum after one. From two on they
  /// overlap the GEMM, which runs piece by piece. Results are bitwise the same, because a row of a GEMM's
  /// result does not depend on other rows. Weight gradients are sums over all rows and stay whole.
  std::int64_t overlap_chunks = 1;
  /// A column-parallel linear's backward overlaps the gather of its input with the input gradient's GEMM, and
  /// the sum of that with the weight gradient's (Korthikanti et al., section 4.2.2). With chunks the sum
  /// overlaps its own GEMM. With sequence parallelism a walk hides more by `DelayedWgrads`, without chunks.
  bool overlap_backward = false;

  /// Rows of a flow of `tokens` tokens on one rank.
  std::int64_t flow_rows(std::int64_t tokens) const {
    return sequence_parallel ? tokens / group.size() : tokens;
  }
};

/// Weight gradients of a backward walk that wait for a collective to hide. With sequence parallelism each
/// segment of a layer gathers dy for its row-parallel linear and x for its column-parallel one, and sums dx:
///
///   gather dy | gradient of the previous segment's column-parallel weight
///   gather x  | input gradient of the column-parallel linear
///   sum dx    | gradient of the row-parallel weight
///
/// A walk of weight gradients alone gathers the same: each gather is behind the gradient before it.
///
/// Two buffers hold the gathered dy and x for the gradients that wait.
class DelayedWgrads {
 public:
  /// True if there is something to hide.
  static bool help(const TensorParallel& tp) {
    return tp.sequence_parallel && tp.group.size() > 1 && tp.overlap_backward;
  }
  /// `dy_TD` and `x_TD`: all rows of a flow.
  DelayedWgrads(const kernels::Tensor& dy_TD, const kernels::Tensor& x_TD) : dy_TD_(dy_TD), x_TD_(x_TD) {}

  const kernels::Tensor& dy_TD() const { return dy_TD_; }
  const kernels::Tensor& x_TD() const { return x_TD_; }
  /// Delays a gradient that reads dy_TD, or x_TD. At most one of each waits.
  void delay_row(std::function<void()> gradient) { row_ = std::move(gradient); }
  void delay_column(std::function<void()> gradient) { column_ = std::move(gradient); }
  /// Compute what waits, if anything.
  void run_row();
  void run_column();

 private:
  kernels::Tensor dy_TD_, x_TD_;
  std::function<void()> row_, column_;
};

// With an adapter (adapter.h) the weight is frozen: `adapter` adds its part to an output or an input
// gradient, and its gradients replace the weight's.

/// x is a flow.
void column_linear(const TensorParallel&, kernels::Stream&, const kernels::LinearFprop&,
                   const Adapter* adapter = nullptr);
/// dx is a flow, assigned.
void column_linear_dgrad(const TensorParallel&, kernels::Stream&, const kernels::LinearDgrad&,
                         const Adapter* adapter = nullptr);
/// x is a flow.
void column_linear_wgrad(const TensorParallel&, kernels::Stream&, const kernels::LinearWgrad&);
void column_linear_wgrad(const TensorParallel&, kernels::Stream&, const AdapterWgrad&);
/// Starts to gather x into `x_TD`, and delays the gradient that reads it.
void column_linear_wgrad(const TensorParallel&, kernels::Stream&, const kernels::Tensor& x_TC, DelayedWgrads&,
                         std::function<void()> gradient);
void column_linear_swiglu(const TensorParallel&, kernels::Stream&, const kernels::LinearSwiglu&);
/// Input gradient, then weight gradient.
void column_linear_backward(const TensorParallel&, kernels::Stream&, const kernels::LinearDgrad&,
                            const kernels::LinearWgrad&);
void column_linear_backward(const TensorParallel&, kernels::Stream&, const kernels::LinearDgrad&,
                            const AdapterWgrad&);
/// Input gradient alone. x, a flow, is gathered to `x_TD` of the delayed gradients; the caller delays the
/// weight's gradient.
void column_linear_dgrad(const TensorParallel&, kernels::Stream&, const kernels::LinearDgrad&,
                         const kernels::Tensor& x_TC, DelayedWgrads&);
/// y is a flow. Every rank has a whole bias and addend; only the first rank adds them, so that the sum has
/// them once.
void row_linear(const TensorParallel&, kernels::Stream&, const kernels::LinearFprop&,
                const Adapter* adapter = nullptr);
/// dy is a flow. With `wgrad`, which has the same dy, it computes the weight's gradient too: dy is gathered
/// once. In chunks it is collected by copies for the weight's gradient.
void row_linear_dgrad(const TensorParallel&, kernels::Stream&, const kernels::LinearDgrad&,
                      const std::optional<kernels::LinearWgrad>& wgrad = {});
void row_linear_dgrad(const TensorParallel&, kernels::Stream&, const kernels::LinearDgrad&, const Adapter&,
                      const std::optional<AdapterWgrad>& wgrad);
void row_linear_dgrad_swiglu(const TensorParallel&, kernels::Stream&, const kernels::LinearDgradSwiglu&,
                             const std::optional<kernels::LinearWgrad>& wgrad = {});
/// Input gradient alone. dy is gathered to `dy_TD` of the delayed gradients; the caller delays the weight's
/// gradient.
void row_linear_dgrad(const TensorParallel&, kernels::Stream&, kernels::LinearDgrad, DelayedWgrads&);
void row_linear_dgrad_swiglu(const TensorParallel&, kernels::Stream&, kernels::LinearDgradSwiglu,
                             DelayedWgrads&);
void row_linear_wgrad(const TensorParallel&, kernels::Stream&, const kernels::LinearWgrad&);
void row_linear_wgrad(const TensorParallel&, kernels::Stream&, const AdapterWgrad&);
/// Starts to gather dy into `dy_TD`, and delays the gradient that reads it.
void row_linear_wgrad(const TensorParallel&, kernels::Stream&, const kernels::Tensor& dy_TN, DelayedWgrads&,
                      std::function<void()> gradient);
/// Each rank holds rows [first_row, first_row + V/tp) of the table; a sum over tp completes every token.
/// `out` is a flow.
void vocab_parallel_embedding(const TensorParallel&, kernels::Stream&, const kernels::EmbeddingForward&);
/// dout is a flow.
void vocab_parallel_embedding_backward(const TensorParallel&, kernels::Stream&,
                                       const kernels::EmbeddingBackward&);

}  // namespace trainerd::parallel
