#include "core/model/stage.h"

#include <array>
#include <utility>

#include "core/model/segments.h"

namespace trainerd::core {
namespace {

using namespace kernels;

std::vector<Segment> segments_of(const ChunkParams& ids) {
  std::vector<Segment> segments;
  if (ids.embedding != kNoParam) segments.push_back({Segment::Kind::embedding, 0});
  for (int layer = 0; layer < static_cast<int>(ids.layers.size()); ++layer) {
    segments.push_back({Segment::Kind::attention, layer});
    segments.push_back({Segment::Kind::mlp, layer});
  }
  if (ids.head != kNoParam) segments.push_back({Segment::Kind::head, 0});
  return segments;
}

}  // namespace

Stage::Stage(const ModelOptions& model, ChunkParams ids, DType dtype, ParamStore& params, const parallel::TensorParallel& tp,
             const Tensor& rope_table_SE)
    : model_(model),
      local_(local_sizes(model, tp.group.size(), tp.group.rank())),
      ids_(std::move(ids)),
      dtype_(dtype),
      params_(params),
      tp_(tp),
      rope_table_SE_(rope_table_SE),
      segments_(segments_of(ids_)) {}

WalkContext Stage::context(Stream& stream, const Frame& frame) const {
  return {model_, local_, ids_, tp_, params_, stream, frame.batch, dtype_, rope_table_SE_};
}

const LayerParams* Stage::layer_of(std::size_t segment) const {
  return ids_.layers.empty() ? nullptr : &ids_.layers[static_cast<std::size_t>(segments_[segment].layer)];
}

Tensor Stage::take_flow(const WalkContext& c, Arena& arena) const {
  return arena.take(dtype_, {tp_.flow_rows(c.batch.tokens()), model_.hidden}, MemoryTerm::activations);
}

void Stage::walk_forward(const WalkContext& c, Frame& frame, const Tensor& out_TD) {
  frame.segments.assign(segments_.size(), {});
  const ArenaScope scope(c.stream.scratch());
  // One delta is enough: a segment reads the one before it into its sum before it writes its own.
  const Tensor delta_TD = take_flow(c, c.stream.scratch());
  Flow flow{frame.in_TD, {}};
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    SegmentState& state = frame.segments[i];
    switch (segments_[i].kind) {
      case Segment::Kind::embedding: flow = embedding_forward(c, frame, state); break;
      case Segment::Kind::attention: flow = attention_forward(c, *layer_of(i), frame, state, flow, delta_TD); break;
      case Segment::Kind::mlp: flow = mlp_forward(c, *layer_of(i), frame, state, flow, delta_TD); break;
      case Segment::Kind::head: head_forward(c, frame, state, flow); break;
    }
  }
  if (last()) return;
  if (flow.delta_TD.defined()) c.backend().add(c.stream, {flow.residual_TD, flow.delta_TD, out_TD});
  else c.backend().copy(c.stream, flow.residual_TD, out_TD);
}

void Stage::forward(Stream& stream, Frame& frame, const Tensor& out_TD) { walk_forward(context(stream, frame), frame, out_TD); }

void Stage::forward_only(Stream& stream, Frame& frame, const Tensor& out_TD, const LossTarget& loss) {
  const WalkContext c = context(stream, frame);
  walk_forward(c, frame, out_TD);
  if (last()) head_loss(c, frame.segments.back(), loss);
}

void Stage::input_gradient(const WalkContext& c, std::size_t segment, Frame& frame, const Tensor& dx_TD, const LossTarget& loss) {
  SegmentState& state = frame.segments[segment];
  switch (segments_[segment].kind) {
    case Segment::Kind::head: head_backward(c, state, loss, dx_TD); break;
    case Segment::Kind::mlp: mlp_backward_input(c, *layer_of(segment), frame, state, state.dflow_TD, dx_TD); break;
    case Segment::Kind::attention: attention_backward_input(c, *layer_of(segment), frame, state, state.dflow_TD, dx_TD); break;
    case Segment::Kind::embedding: break;
  }
}

void Stage::weight_gradient(const WalkContext& c, std::size_t segment, Frame& frame) {
  const SegmentState& state = frame.segments[segment];
  switch (segments_[segment].kind) {
    case Segment::Kind::head: break;
    case Segment::Kind::mlp: mlp_backward_weight(c, *layer_of(segment), state, state.dflow_TD); break;
    case Segment::Kind::attention: attention_backward_weight(c, *layer_of(segment), state, state.dflow_TD); break;
    case Segment::Kind::embedding: embedding_backward_weight(c, state.dflow_TD); break;
  }
}

void Stage::backward(Stream& stream, Frame& frame, const Tensor& dout_TD, const Tensor& din_TD, const LossTarget& loss) {
  const WalkContext c = context(stream, frame);
  const ArenaScope scope(*frame.grads);
  // The gradient of the flow before and after a segment: the first stays whole until the segment's weights are done.
  std::array<Tensor, 2> dflow;
  for (Tensor& d : dflow) d = take_flow(c, *frame.grads);
  if (dout_TD.defined()) dflow[0] = dout_TD;
  for (std::size_t i = segments_.size(); i-- > 0;) {
    const ArenaScope segment_scope(*frame.grads);
    frame.segments[i].dflow_TD = dflow[0];
    const Tensor dx_TD = i == 0 && din_TD.defined() ? din_TD : dflow[1];
    input_gradient(c, i, frame, dx_TD, loss);
    weight_gradient(c, i, frame);
    params_.reduce_complete_grads();
    std::swap(dflow[0], dflow[1]);
  }
}

void Stage::backward_input(Stream& stream, Frame& frame, const Tensor& dout_TD, const Tensor& din_TD, const LossTarget& loss) {
  const WalkContext c = context(stream, frame);
  // What the weights' walk reads must outlive what the executor receives next: the chunk's own copy.
  Tensor dflow;
  if (dout_TD.defined()) {
    dflow = take_flow(c, *frame.grads);
    c.backend().copy(stream, dout_TD, dflow);
  }
  for (std::size_t i = segments_.size(); i-- > 0;) {
    frame.segments[i].dflow_TD = dflow;
    if (segments_[i].kind == Segment::Kind::embedding) break;
    const Tensor dx_TD = i == 0 && din_TD.defined() ? din_TD : take_flow(c, *frame.grads);
    input_gradient(c, i, frame, dx_TD, loss);
    params_.reduce_complete_grads();
    dflow = dx_TD;
  }
}

void Stage::backward_weight(Stream& stream, Frame& frame) {
  const WalkContext c = context(stream, frame);
  for (std::size_t i = segments_.size(); i-- > 0;) {
    weight_gradient(c, i, frame);
    params_.reduce_complete_grads();
  }
}

}  // namespace trainerd::core
