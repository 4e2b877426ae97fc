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
             Arena& persistent)
    : model_(model), ids_(std::move(ids)), dtype_(dtype), params_(params), tp_(tp), segments_(segments_of(ids_)) {
  if (model_.positions == Positions::rope)
    rope_table_SE_ = persistent.take(DType::f32, {model_.seq_len, model_.head_dim}, MemoryTerm::parameters);
}

void Stage::initialise(Stream& stream) {
  if (rope_table_SE_.defined())
    tp_.backend.rope_table(stream, {.theta = static_cast<float>(model_.rope_theta), .table_SE = rope_table_SE_});
}

WalkContext Stage::context(Stream& stream, const Batch& batch) const {
  return {model_, ids_, tp_, params_, stream, batch, dtype_, rope_table_SE_};
}

Flow Stage::walk_forward(const WalkContext& c, Frame& frame) {
  frame.segments.assign(segments_.size(), {});
  const ArenaScope scope(c.stream.scratch());
  // One delta is enough: a segment reads the one before it into its sum before it writes its own.
  const Tensor delta_TD = c.stream.scratch().take(dtype_, {c.batch.tokens(), model_.hidden}, MemoryTerm::activations);
  Flow flow;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    SegmentState& state = frame.segments[i];
    const LayerParams* layer = ids_.layers.empty() ? nullptr : &ids_.layers[static_cast<std::size_t>(segments_[i].layer)];
    switch (segments_[i].kind) {
      case Segment::Kind::embedding: flow = embedding_forward(c, frame, state); break;
      case Segment::Kind::attention: flow = attention_forward(c, *layer, frame, state, flow, delta_TD); break;
      case Segment::Kind::mlp: flow = mlp_forward(c, *layer, frame, state, flow, delta_TD); break;
      case Segment::Kind::head: head_forward(c, frame, state, flow); break;
    }
  }
  return flow;
}

void Stage::forward(Stream& stream, Frame& frame, const Batch& batch) { walk_forward(context(stream, batch), frame); }

void Stage::forward_only(Stream& stream, Frame& frame, const Batch& batch, const LossTarget& loss) {
  const WalkContext c = context(stream, batch);
  walk_forward(c, frame);
  base::check(segments_.back().kind == Segment::Kind::head, "an evaluation ends in the head");
  head_loss(c, frame.segments.back(), loss);
}

void Stage::backward(Stream& stream, Frame& frame, const Batch& batch, const LossTarget& loss) {
  const WalkContext c = context(stream, batch);
  const ArenaScope scope(*frame.grads);
  // The gradient of the flow before and after a segment: the first stays whole until the segment's weights are done.
  std::array<Tensor, 2> dflow;
  for (Tensor& d : dflow) d = frame.grads->take(dtype_, {batch.tokens(), model_.hidden}, MemoryTerm::activations);
  for (std::size_t i = segments_.size(); i-- > 0;) {
    SegmentState& state = frame.segments[i];
    const LayerParams* layer = ids_.layers.empty() ? nullptr : &ids_.layers[static_cast<std::size_t>(segments_[i].layer)];
    const ArenaScope segment_scope(*frame.grads);
    switch (segments_[i].kind) {
      case Segment::Kind::head: head_backward(c, state, loss, dflow[1]); break;
      case Segment::Kind::mlp:
        mlp_backward_input(c, *layer, frame, state, dflow[0], dflow[1]);
        mlp_backward_weight(c, *layer, state, dflow[0]);
        break;
      case Segment::Kind::attention:
        attention_backward_input(c, *layer, frame, state, dflow[0], dflow[1]);
        attention_backward_weight(c, *layer, state, dflow[0]);
        break;
      case Segment::Kind::embedding: embedding_backward_weight(c, dflow[0]); break;
    }
    std::swap(dflow[0], dflow[1]);
  }
}

}  // namespace trainerd::core
