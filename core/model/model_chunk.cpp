#include "core/model/model_chunk.h"

#include <array>
#include <utility>

#include "core/model/recompute.h"
#include "core/model/segment_experts.h"
#include "core/model/segments.h"

namespace trainerd::core::model {
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

bool half_layer(Segment::Kind kind) { return kind == Segment::Kind::attention || kind == Segment::Kind::mlp; }

std::vector<SegmentSpan> spans_of(const std::vector<Segment>& segments, const job::RecomputeOptions& options,
                                  std::int64_t first_layer) {
  std::vector<SegmentSpan> spans;
  std::size_t full = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const bool layer = half_layer(segments[i].kind);
    const job::RecomputeKind kind =
        layer ? recompute_of(options, first_layer + segments[i].layer) : job::RecomputeKind::none;
    if (kind == job::RecomputeKind::full && segments[i].kind == Segment::Kind::mlp) spans.back().end = i + 1;
    else spans.push_back({i, i + 1, kind, full});
    if (layer && kind == job::RecomputeKind::full && segments[i].kind == Segment::Kind::attention) ++full;
  }
  return spans;
}

}  // namespace

ModelChunk::ModelChunk(const job::ModelOptions& model, const job::RecomputeOptions& recompute,
                       ChunkParams ids, DType dtype, ParamStore& params, const parallel::TensorParallel& tp,
                       const RopeTables& rope, Determinism attention, const parallel::ContextParallel& cp,
                       const parallel::ExpertParallel& ep)
    : model_(model),
      local_(local_sizes(model, tp.group.size(), tp.group.rank(), tp.backend.target().vocab_multiple,
                         ep.own_tokens)),
      ids_(std::move(ids)),
      dtype_(dtype),
      params_(params),
      tp_(tp),
      cp_(cp),
      ep_(ep),
      rope_(rope),
      attention_(attention),
      segments_(segments_of(ids_)),
      spans_(spans_of(segments_, recompute, ids_.first_layer)) {}

WalkContext ModelChunk::context(Stream& stream, const Frame& frame) const {
  return {model_, local_, ids_, tp_, cp_, ep_, params_, stream, frame.batch, dtype_, rope_, attention_};
}

const LayerParams* ModelChunk::layer_of(std::size_t segment) const {
  return ids_.layers.empty() ? nullptr : &ids_.layers[static_cast<std::size_t>(segments_[segment].layer)];
}

Tensor ModelChunk::take_flow(const WalkContext& c, Arena& arena) const {
  return arena.take(dtype_, {tp_.flow_rows(c.batch.tokens()), model_.hidden}, MemoryTerm::activations);
}

Tensor ModelChunk::take_whole_flow(const WalkContext& c, Arena& arena) const {
  return arena.take(dtype_, {c.batch.tokens(), model_.hidden}, MemoryTerm::activations);
}

Arena& ModelChunk::sum_arena(Stream& stream, const SegmentSpan& span, const Frame& frame) const {
  const bool offloaded = offload_ != nullptr && span.recompute == job::RecomputeKind::full;
  return offloaded ? offload_->arena(stream, span.full) : *frame.to_backward;
}

Tensor ModelChunk::next_sum(const WalkContext& c, std::size_t span, std::size_t segment, Frame& frame,
                            const Tensor& passing_TD, const Tensor& out_TD) const {
  if (segment + 1 < spans_[span].end) return passing_TD;
  if (segment + 1 == segments_.size()) return out_TD;
  return take_flow(c, sum_arena(c.stream, spans_[span + 1], frame));
}

void ModelChunk::walk_forward(const WalkContext& c, Frame& frame, const Tensor& out_TD, Keep keep) {
  frame.segments.assign(segments_.size(), {});
  const ArenaScope scope(c.stream.scratch());
  // One delta tensor is enough: each segment adds the previous delta to its sum before it writes its own.
  Tensor delta_TD;
  for (std::size_t i = 0; i < segments_.size() && !delta_TD.defined(); ++i)
    if (half_layer(segments_[i].kind) && !adds_to_flow(c, *layer_of(i), segments_[i].kind))
      delta_TD = take_flow(c, c.stream.scratch());
  // The sum inside a layer that keeps only its input. The next layer reads it before it is overwritten.
  Tensor passing_TD;
  Flow flow{frame.in_TD, {}};
  for (std::size_t s = 0; s < spans_.size(); ++s) {
    const SegmentSpan& span = spans_[s];
    // The embedding's output is the first layer's input.
    const bool embeds = segments_[span.begin].kind == Segment::Kind::embedding && s + 1 < spans_.size();
    const ActivationArenas arenas = forward_arenas(span.recompute, frame, c.stream.scratch(),
                                                   sum_arena(c.stream, embeds ? spans_[s + 1] : span, frame));
    if (span.recompute == job::RecomputeKind::full && !passing_TD.defined())
      passing_TD = take_flow(c, c.stream.scratch());
    for (std::size_t i = span.begin; i < span.end; ++i) {
      const ArenaScope segment_scope(c.stream.scratch());
      SegmentState& state = frame.segments[i];
      const Segment::Kind kind = segments_[i].kind;
      if (i > span.begin) state.sum_TD = passing_TD;
      OutputPlace to;
      if (half_layer(kind) && adds_to_flow(c, *layer_of(i), kind))
        to.sum_TD = next_sum(c, s, i, frame, passing_TD, out_TD);
      else to.delta_TD = delta_TD;
      switch (kind) {
        case Segment::Kind::embedding: flow = embedding_forward(c, arenas, state); break;
        case Segment::Kind::attention:
          flow = attention_forward(c, *layer_of(i), arenas, state, flow, to);
          break;
        case Segment::Kind::mlp: flow = mlp_forward(c, *layer_of(i), arenas, state, flow, to); break;
        case Segment::Kind::head: head_forward(c, arenas, state, flow); break;
      }
      if (offload_ != nullptr && keep == Keep::for_backward && i == span.begin &&
          span.recompute == job::RecomputeKind::full && offload_->holds(state.sum_TD)) {
        state.host_TD = take_flow(c, *frame.host);
        offload_->keep(c.stream, span.full, state.sum_TD, state.host_TD);
      }
      state = kept_state(span.recompute, kind, model_, state);
    }
  }
  if (last()) return;
  if (flow.delta_TD.defined()) c.backend().add(c.stream, {flow.residual_TD, flow.delta_TD, out_TD});
  else if (flow.residual_TD.data != out_TD.data) c.backend().copy(c.stream, flow.residual_TD, out_TD);
}

void ModelChunk::forward(Stream& stream, Frame& frame, const Tensor& out_TD) {
  walk_forward(context(stream, frame), frame, out_TD, Keep::for_backward);
}

void ModelChunk::forward_only(Stream& stream, Frame& frame, const Tensor& out_TD, const LossTarget& loss) {
  const WalkContext c = context(stream, frame);
  walk_forward(c, frame, out_TD, Keep::nothing);
  if (last()) head_loss(c, frame.segments.back(), loss);
}

void ModelChunk::forward_logits(Stream& stream, Frame& frame, std::int64_t row, const Tensor& logits_1V) {
  const WalkContext c = context(stream, frame);
  walk_forward(c, frame, {}, Keep::nothing);
  head_logits(c, frame.segments.back(), row, logits_1V);
}

void ModelChunk::fetch_input(const WalkContext& c, std::size_t end, const Frame& frame) const {
  for (std::size_t s = end; s-- > 0;)
    if (const Tensor& host_TD = frame.segments[spans_[s].begin].host_TD; host_TD.defined())
      return offload_->fetch(c.stream, spans_[s].full, host_TD);
}

void ModelChunk::restore(const WalkContext& c, std::size_t span, Frame& frame) {
  SegmentState& first = frame.segments[spans_[span].begin];
  if (!first.host_TD.defined()) return;
  offload_->fetch(c.stream, spans_[span].full, first.host_TD);
  first.sum_TD = offload_->fetched(c.stream, spans_[span].full), first.host_TD = {};
  fetch_input(c, span, frame);
}

void ModelChunk::recompute(const WalkContext& c, const SegmentSpan& span, Frame& frame) {
  if (span.recompute == job::RecomputeKind::none) return;
  const ActivationArenas arenas = recompute_arenas(frame, c.stream.scratch());
  SegmentState& first = frame.segments[span.begin];
  const LayerParams& ids = *layer_of(span.begin);
  const Flow in{first.sum_TD, {}};
  if (segments_[span.begin].kind == Segment::Kind::mlp) return mlp_recompute(c, ids, arenas, first, in);
  attention_state(c, ids, arenas, first, in);
  if (span.end == span.begin + 1) return;
  SegmentState& mlp = frame.segments[span.begin + 1];
  mlp.sum_TD = take_flow(c, arenas.sum);
  if (adds_to_flow(c, ids, Segment::Kind::attention)) {
    attention_output(c, ids, arenas, first, {.delta_TD = {}, .sum_TD = mlp.sum_TD});
    return mlp_recompute(c, ids, arenas, mlp, {mlp.sum_TD, {}});
  }
  // Attention's contribution is computed into the sum's buffer and passed as the residual, which the norm may
  // overwrite. The order of the two summands changes, which changes no bit.
  attention_output(c, ids, arenas, first, {.delta_TD = mlp.sum_TD, .sum_TD = {}});
  mlp_recompute(c, ids, arenas, mlp, {mlp.sum_TD, first.sum_TD});
}

void ModelChunk::input_gradient(const WalkContext& c, std::size_t segment, Frame& frame, const Tensor& dx_TD,
                                const LossTarget& loss, BackwardMode backward) {
  SegmentState& state = frame.segments[segment];
  switch (segments_[segment].kind) {
    case Segment::Kind::head: head_backward(c, state, loss, dx_TD); break;
    case Segment::Kind::mlp:
      mlp_backward_input(c, *layer_of(segment), frame, state, state.dflow_TD, dx_TD, loss, backward);
      break;
    case Segment::Kind::attention:
      attention_backward_input(c, *layer_of(segment), frame, state, state.dflow_TD, dx_TD, backward);
      break;
    case Segment::Kind::embedding: break;
  }
}

void ModelChunk::weight_gradient(const WalkContext& c, std::size_t segment, Frame& frame) {
  const SegmentState& state = frame.segments[segment];
  switch (segments_[segment].kind) {
    case Segment::Kind::head: break;
    case Segment::Kind::mlp: mlp_backward_weight(c, *layer_of(segment), state, state.dflow_TD); break;
    case Segment::Kind::attention:
      attention_backward_weight(c, *layer_of(segment), state, state.dflow_TD);
      break;
    case Segment::Kind::embedding: embedding_backward_weight(c, state.dflow_TD); break;
  }
}

parallel::DelayedWgrads ModelChunk::delayed_wgrads(const WalkContext& c) const {
  const Tensor dy_TD = take_whole_flow(c, c.stream.scratch()), x_TD = take_whole_flow(c, c.stream.scratch());
  return {dy_TD, x_TD};
}

bool ModelChunk::delays_gradients(std::size_t segment) const {
  return half_layer(segments_[segment].kind) && params_.info(layer_of(segment)->up.weight).trainable &&
         parallel::DelayedWgrads::help(tp_);
}

bool ModelChunk::writes_before_gather(std::size_t segment) const {
  const Segment::Kind kind = segments_[segment].kind;
  return kind == Segment::Kind::embedding ||
         (kind == Segment::Kind::mlp &&
          (layer_of(segment)->mlp_post_norm.weight != kNoParam || has_experts(*layer_of(segment))));
}

void ModelChunk::backward(Stream& stream, Frame& frame, const Tensor& dout_TD, const Tensor& din_TD,
                          const LossTarget& loss) {
  WalkContext c = context(stream, frame);
  const ArenaScope scope(*frame.grads), scratch_scope(stream.scratch());
  // Gradient of the flow after and before a segment. The first must stay until the segment's weight gradients
  // are done.
  std::array<Tensor, 2> dflow;
  for (Tensor& d : dflow) d = take_flow(c, *frame.grads);
  if (dout_TD.defined()) dflow[0] = dout_TD;
  std::optional<parallel::DelayedWgrads> delayed;
  Tensor dqkv;  // in the frame until the delayed gradient has read it
  fetch_input(c, spans_.size(), frame);
  for (auto span = spans_.rbegin(); span != spans_.rend(); ++span) {
    if (!delayed && delays_gradients(span->begin)) {
      dqkv = attention_gradient(c, *frame.grads);
      c.delayed = &delayed.emplace(delayed_wgrads(c));
    }
    const ArenaScope remade(*frame.grads), remade_in_scratch(stream.scratch());
    restore(c, static_cast<std::size_t>(spans_.rend() - span) - 1, frame);
    recompute(c, *span, frame);
    for (std::size_t i = span->end; i-- > span->begin;) {
      const ArenaScope segment_scope(*frame.grads);
      frame.segments[i].dflow_TD = dflow[0];
      frame.segments[i].dqkv = dqkv;
      const Tensor dx_TD = i == 0 && din_TD.defined() ? din_TD : dflow[1];
      if (delayed && writes_before_gather(i)) delayed->run_column();
      input_gradient(c, i, frame, dx_TD, loss, BackwardMode::fused);
      if (segments_[i].kind == Segment::Kind::embedding) weight_gradient(c, i, frame);
      // The segment's memory is released now, and at the end of the span what was recomputed.
      if (delayed) delayed->run_row();
      if (delayed && span->recompute == job::RecomputeKind::full && i == span->begin) delayed->run_column();
      params_.reduce_complete_grads();
      std::swap(dflow[0], dflow[1]);
    }
  }
  if (!delayed) return;
  delayed->run_column();
  params_.reduce_complete_grads();
}

void ModelChunk::backward_input(Stream& stream, Frame& frame, const Tensor& dout_TD, const Tensor& din_TD,
                                const LossTarget& loss) {
  const WalkContext c = context(stream, frame);
  // The weight gradients need it longer than the executor's receive buffer lives, so it is copied.
  Tensor dflow;
  if (dout_TD.defined()) {
    dflow = take_flow(c, *frame.grads);
    c.backend().copy(stream, dout_TD, dflow);
  }
  fetch_input(c, spans_.size(), frame);
  for (auto span = spans_.rbegin(); span != spans_.rend(); ++span) {
    // Recomputed tensors that the weight gradients read stay in `frame.grads`.
    const ArenaScope remade_in_scratch(stream.scratch());
    restore(c, static_cast<std::size_t>(spans_.rend() - span) - 1, frame);
    recompute(c, *span, frame);
    for (std::size_t i = span->end; i-- > span->begin;) {
      frame.segments[i].dflow_TD = dflow;
      if (segments_[i].kind == Segment::Kind::embedding) break;
      const Tensor dx_TD = i == 0 && din_TD.defined() ? din_TD : take_flow(c, *frame.grads);
      input_gradient(c, i, frame, dx_TD, loss, BackwardMode::split);
      params_.reduce_complete_grads();
      dflow = dx_TD;
    }
  }
}

void ModelChunk::backward_weight(Stream& stream, Frame& frame) {
  WalkContext c = context(stream, frame);
  const ArenaScope scratch_scope(stream.scratch());
  std::optional<parallel::DelayedWgrads> delayed;
  for (std::size_t i = segments_.size(); i-- > 0;) {
    if (!delayed && delays_gradients(i)) c.delayed = &delayed.emplace(delayed_wgrads(c));
    if (delayed && writes_before_gather(i)) delayed->run_column();
    weight_gradient(c, i, frame);
    params_.reduce_complete_grads();
  }
  if (!delayed) return;
  delayed->run_row();
  delayed->run_column();
  params_.reduce_complete_grads();
}

}  // namespace trainerd::core::model
