#pragma once

#include <optional>
#include <vector>

#include "core/job/model_options.h"
#include "core/model/batch.h"
#include "core/model/flow_offload.h"
#include "core/model/frame.h"
#include "core/model/param_store.h"
#include "core/model/parameters.h"
#include "core/model/rope.h"
#include "parallel/context/context.h"
#include "parallel/expert/expert.h"
#include "parallel/tensor/head.h"

namespace trainerd::core::model {

/// A sequence of operators between two points where a collective starts or is awaited.
struct Segment {
  enum class Kind : std::uint8_t { embedding, attention, mlp, head } kind = Kind::embedding;
  int layer = 0;  ///< within the chunk
};

/// The flow between segments as two summands, so that one kernel adds and normalises.
struct Flow {
  kernels::Tensor residual_TD;
  kernels::Tensor delta_TD;  ///< undefined after the embedding, and if a GEMM has added it
};

/// Whether `backward_input` also computes the gradients of a segment's GEMM weights, so that both share
/// gathered tensors and hide communication (fused), or leaves them to a separate walk (split).
enum class BackwardMode : std::uint8_t { fused, split };

/// Common arguments of all segments' operators.
struct WalkContext {
  const job::ModelOptions& model;
  const LocalSizes& local;
  const ChunkParams& ids;
  const parallel::TensorParallel& tp;
  const parallel::ContextParallel& cp;
  const parallel::ExpertParallel& ep;
  ParamStore& params;
  kernels::Stream& stream;
  const Batch& batch;
  kernels::DType dtype;  ///< of activations
  const RopeTables& rope;
  kernels::Determinism attention;  ///< of attention's backward
  /// Set in a walk that delays weight gradients.
  parallel::DelayedWgrads* delayed = nullptr;
  kernels::Backend& backend() const { return tp.backend; }
};

/// Destination of a microbatch's loss, and the scale of one token's loss in the gradient.
struct LossTarget {
  kernels::Tensor loss_T;           ///< f32, written by the head
  float grad_scale = 0;             ///< 1 / tokens of the global batch
  kernels::Tensor loss_scale = {};  ///< f32 [1]: another factor of the gradient; undefined: none
  float label_smoothing = 0;        ///< as in parallel::HeadLoss
  float z_loss = 0;                 ///< as in parallel::HeadLoss
  float expert_balance = 0;         ///< factor of the experts' balance loss: kernels::RouteBackward
  /// f64 [1], with `expert_balance`: where the balance losses of all layers are added, times `grad_scale`.
  kernels::Tensor balance_sum = {};
  kernels::Tensor z_loss_T = {};  ///< f32; undefined without z_loss
  /// For pairs, without the reference, which is in the batch; `grad_scale` is then 1 / pairs of the global
  /// batch.
  std::optional<parallel::PreferenceTarget> preference = {};
};

/// Segments [begin, end) that are recomputed together: one half-layer, or both halves of a layer that keeps
/// only its input.
struct SegmentSpan {
  std::size_t begin = 0, end = 0;
  job::RecomputeKind recompute = job::RecomputeKind::none;
  std::size_t full = 0;  ///< number of spans before it that keep only their input
};

/// The layers of one pipeline chunk. Without state between calls except the parameters: a walk's state is in
/// its Frame. One tensor flows between chunks, the summed residual stream [T, D] (with sequence parallelism
/// this rank's rows), and its gradient flows back.
class ModelChunk {
 public:
  /// The caller fills `rope`.
  ModelChunk(const job::ModelOptions& model, const job::RecomputeOptions& recompute, ChunkParams ids,
             kernels::DType dtype, ParamStore& params, const parallel::TensorParallel& tp,
             const RopeTables& rope, kernels::Determinism attention = kernels::Determinism::deterministic,
             const parallel::ContextParallel& cp = {}, const parallel::ExpertParallel& ep = {});

  /// Inputs of layers that keep nothing else are kept by `offload`, which must outlive this.
  void offload_flows(FlowOffload& offload) { offload_ = &offload; }

  const std::vector<Segment>& segments() const { return segments_; }
  const ChunkParams& ids() const { return ids_; }
  /// The memory for the flow from the previous chunk.
  kernels::Arena& input_arena(kernels::Stream& stream, const Frame& frame) const {
    return sum_arena(stream, spans_.front(), frame);
  }
  bool first() const { return ids_.embedding != kNoParam; }
  bool last() const { return ids_.head != kNoParam; }

  /// Forward of a training microbatch. Keeps in `frame` what backward needs. `out_TD` is the flow to the next
  /// chunk, undefined in the last.
  void forward(kernels::Stream& stream, Frame& frame, const kernels::Tensor& out_TD);
  /// Forward for evaluation: the last chunk writes the loss. Keeps nothing.
  void forward_only(kernels::Stream& stream, Frame& frame, const kernels::Tensor& out_TD,
                    const LossTarget& loss);
  /// Forward of a single chunk, first and last, without a loss: the head's logits for one row, `logits_1V`
  /// [1, vocabulary], in the activations' dtype. For one tensor-parallel rank.
  void forward_logits(kernels::Stream& stream, Frame& frame, std::int64_t row,
                      const kernels::Tensor& logits_1V);
  /// Input and weight gradients, segment by segment from the last, so that intermediate tensors live
  /// shortest. `dout_TD` is the gradient from the next chunk (undefined in the last) and is overwritten;
  /// `din_TD` receives the gradient for the previous chunk (undefined in the first). The head computes its
  /// loss here, together with its gradient: see `parallel::HeadLoss`.
  void backward(kernels::Stream& stream, Frame& frame, const kernels::Tensor& dout_TD,
                const kernels::Tensor& din_TD, const LossTarget& loss);
  /// The same in two walks (zero bubble). First the gradients of inputs, norms and the head, which is never
  /// computed twice.
  void backward_input(kernels::Stream& stream, Frame& frame, const kernels::Tensor& dout_TD,
                      const kernels::Tensor& din_TD, const LossTarget& loss);
  /// Later the gradients of GEMM weights and embeddings, from what the first walk kept in `frame.grads`.
  void backward_weight(kernels::Stream& stream, Frame& frame);

 private:
  WalkContext context(kernels::Stream& stream, const Frame& frame) const;
  enum class Keep : std::uint8_t { for_backward, nothing };
  void walk_forward(const WalkContext& context, Frame& frame, const kernels::Tensor& out_TD, Keep keep);
  /// The memory for the sum at the start of a span.
  kernels::Arena& sum_arena(kernels::Stream& stream, const SegmentSpan& span, const Frame& frame) const;
  /// Starts to bring the input of the last span before `end` back from host memory, if one is there.
  void fetch_input(const WalkContext& context, std::size_t end, const Frame& frame) const;
  /// Brings the input of a span back from host memory, and starts to bring that of the span before it.
  void restore(const WalkContext& context, std::size_t span, Frame& frame);
  /// Recomputes what forward did not keep of a span, into `frame.grads` and scratch.
  void recompute(const WalkContext& context, const SegmentSpan& span, Frame& frame);
  void input_gradient(const WalkContext&, std::size_t segment, Frame&, const kernels::Tensor& dx_TD,
                      const LossTarget&, BackwardMode);
  void weight_gradient(const WalkContext&, std::size_t segment, Frame&);
  /// True if the segment writes gradients before it gathers dy. Those of the layer behind must then be
  /// complete.
  bool writes_before_gather(std::size_t segment) const;
  /// True if the walk delays the weight gradients of the segment and of those before it.
  bool delays_gradients(std::size_t segment) const;
  /// With buffers in scratch.
  parallel::DelayedWgrads delayed_wgrads(const WalkContext& context) const;
  const LayerParams* layer_of(std::size_t segment) const;
  kernels::Tensor take_flow(const WalkContext& context, kernels::Arena& arena) const;
  /// All rows of a flow.
  kernels::Tensor take_whole_flow(const WalkContext& context, kernels::Arena& arena) const;
  /// Destination of a segment's output if its GEMM adds to the flow: the sum with which the next segment
  /// begins. `passing_TD` is the sum inside a layer that keeps only its input.
  kernels::Tensor next_sum(const WalkContext& context, std::size_t span, std::size_t segment, Frame& frame,
                           const kernels::Tensor& passing_TD, const kernels::Tensor& out_TD) const;

  const job::ModelOptions model_;
  const LocalSizes local_;
  const ChunkParams ids_;
  const kernels::DType dtype_;
  ParamStore& params_;
  const parallel::TensorParallel tp_;
  const parallel::ContextParallel cp_;
  const parallel::ExpertParallel ep_;
  const RopeTables rope_;
  const kernels::Determinism attention_;
  std::vector<Segment> segments_;
  std::vector<SegmentSpan> spans_;
  FlowOffload* offload_ = nullptr;
};

}  // namespace trainerd::core::model
