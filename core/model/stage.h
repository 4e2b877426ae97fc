#pragma once

#include <vector>

#include "core/model/batch.h"
#include "core/model/frame.h"
#include "core/model/options.h"
#include "core/model/parameters.h"
#include "parallel/linear.h"

namespace trainerd::core {

/// A run of operators between two points where a collective starts or is awaited.
struct Segment {
  enum class Kind : std::uint8_t { embedding, attention, mlp, head } kind = Kind::embedding;
  int layer = 0;  ///< within the chunk
};

/// What flows between segments, unsummed, so that one kernel adds and normalises.
struct Flow {
  kernels::Tensor residual_TD;
  kernels::Tensor delta_TD;  ///< undefined after the embedding
};

/// What every segment's operators are issued with.
struct WalkContext {
  const ModelOptions& model;
  const ChunkParams& ids;
  const parallel::TensorParallel& tp;
  ParamStore& params;
  kernels::Stream& stream;
  const Batch& batch;
  kernels::DType dtype;            ///< of activations
  kernels::Tensor rope_table_SE;   ///< undefined without rotation
  kernels::Backend& backend() const { return tp.backend; }
};

/// Loss of a microbatch: where it goes, and what one token's loss counts for in the gradient.
struct LossTarget {
  kernels::Tensor loss_T;  ///< f32, written by the head
  float grad_scale = 0;    ///< 1 / tokens of the global batch
};

/// The layers of one pipeline chunk. Stateless between calls but for the parameters: state of a walk is in its Frame.
class Stage {
 public:
  /// `rope_table_SE` is persistent memory that `initialise` fills; undefined without rotary positions.
  Stage(const ModelOptions& model, ChunkParams ids, kernels::DType dtype, ParamStore& params,
        const parallel::TensorParallel& tp, kernels::Arena& persistent);

  /// Fills constant tables.
  void initialise(kernels::Stream& stream);
  const std::vector<Segment>& segments() const { return segments_; }
  const ChunkParams& ids() const { return ids_; }

  /// Forward of a training microbatch: leaves in `frame` what backward needs.
  void forward(kernels::Stream& stream, Frame& frame, const Batch& batch);
  /// Forward for evaluation: writes the loss and leaves nothing.
  void forward_only(kernels::Stream& stream, Frame& frame, const Batch& batch, const LossTarget& loss);
  /// Input and weight gradients, segment by segment from the last, so that what lies between them lives shortest.
  /// The head's loss is made here, beside its gradient: see `parallel::HeadLoss`.
  void backward(kernels::Stream& stream, Frame& frame, const Batch& batch, const LossTarget& loss);

 private:
  WalkContext context(kernels::Stream& stream, const Batch& batch) const;
  Flow walk_forward(const WalkContext& context, Frame& frame);
  const ModelOptions model_;
  const ChunkParams ids_;
  const kernels::DType dtype_;
  ParamStore& params_;
  const parallel::TensorParallel tp_;
  kernels::Tensor rope_table_SE_;
  std::vector<Segment> segments_;
};

}  // namespace trainerd::core
