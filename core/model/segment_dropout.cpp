#include "core/model/segment_dropout.h"

#include <algorithm>

#include "core/model/segment_norms.h"
#include "kernels/tensor/rng.h"

namespace trainerd::core::model {

using namespace kernels;

namespace {

// Each place in the model with dropout has its own number, which keys its random numbers.
constexpr std::uint64_t kEmbeddingPlace = 0, kFirstLayerPlace = 1, kPlacesOfLayer = 2;

std::uint64_t place_of(const LayerParams& ids, Segment::Kind half) {
  return kFirstLayerPlace + kPlacesOfLayer * static_cast<std::uint64_t>(ids.index) +
         (half == Segment::Kind::mlp ? 1 : 0);
}

bool drops(const WalkContext& c, double rate) { return rate > 0 && c.batch.dropout_key.has_value(); }

void drop(const WalkContext& c, double rate, std::uint64_t place, const Tensor& x_TD, const Tensor& out_TD) {
  // With sequence parallelism the flow has only a part of this rank's rows of the microbatch.
  const std::int64_t count = x_TD.size(0), first_row = c.tp.sequence_parallel ? c.tp.group.rank() * count : 0,
                     run = c.batch.share.whole() ? count : c.batch.share.piece_rows();
  for (std::int64_t at = 0; at < count;) {
    // Rows up to the end of their piece of the sequence are consecutive tokens.
    const std::int64_t row = first_row + at, rows = std::min(count - at, run - row % run);
    const std::int64_t token = c.batch.first_token + c.batch.share.token(row, c.batch.samples);
    c.backend().dropout(c.stream, {.x = x_TD.rows(at, rows),
                                   .out = out_TD.rows(at, rows),
                                   .rate = static_cast<float>(rate),
                                   .key = mix_keys(*c.batch.dropout_key, place),
                                   .first = static_cast<std::uint64_t>(token * c.model.hidden)});
    at += rows;
  }
}

}  // namespace

void drop_embedding(const WalkContext& c, const Tensor& flow_TD) {
  const double rate = c.model.dropout.embedding;
  if (drops(c, rate)) drop(c, rate, kEmbeddingPlace, flow_TD, flow_TD);
}

void scale_in_place(const WalkContext& c, const Tensor& x, float factor) {
  if (factor != 1.0f) c.backend().scale(c.stream, {.x = x, .factor = factor, .out = x});
}

void finish_contribution(const WalkContext& c, const LayerParams& ids, Segment::Kind half,
                         const Tensor& delta_TD) {
  scale_in_place(c, delta_TD, static_cast<float>(c.model.residual_scale));
  const double rate = c.model.dropout.residual;
  if (drops(c, rate)) drop(c, rate, place_of(ids, half), delta_TD, delta_TD);
}

Tensor contribution_gradient(const WalkContext& c, const LayerParams& ids, Segment::Kind half, Frame& frame,
                             SegmentState& state, const Tensor& dflow_TD) {
  const double rate = c.model.dropout.residual;
  const auto scale = static_cast<float>(c.model.residual_scale);
  if (!drops(c, rate) && scale == 1.0f) return dflow_TD;
  state.dout_TD = flow(c, *frame.grads);
  if (drops(c, rate)) {
    drop(c, rate, place_of(ids, half), dflow_TD, state.dout_TD);
    scale_in_place(c, state.dout_TD, scale);
  } else {
    c.backend().scale(c.stream, {.x = dflow_TD, .factor = scale, .out = state.dout_TD});
  }
  return state.dout_TD;
}

}  // namespace trainerd::core::model
