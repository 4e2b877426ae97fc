#pragma once

// The router of a layer with experts: chooses the experts of each token, and says which ranks and rows they
// are on. Tokens are those that this rank routes: all of its tensor-parallel group, or with whole experts its
// own (parallel::ExpertParallel::own_tokens).

#include "core/model/model_chunk.h"

namespace trainerd::core::model {

/// Tokens that this rank routes.
inline std::int64_t routed_tokens(const WalkContext& c) {
  return c.ep.own_tokens ? c.batch.tokens() / c.tp.group.size() : c.batch.tokens();
}
inline std::int64_t first_routed(const WalkContext& c) {
  return c.ep.own_tokens ? c.tp.group.rank() * routed_tokens(c) : 0;
}
/// Their part of one number for each token of the batch.
inline kernels::Tensor of_routed(const WalkContext& c, const kernels::Tensor& x_T) {
  return x_T.defined() ? x_T.rows(first_routed(c), routed_tokens(c)) : x_T;
}

/// True on the ranks that together route each token once.
inline bool routes_once(const WalkContext& c) { return c.ep.own_tokens || c.tp.group.rank() == 0; }

/// Rows of a microbatch's experts: a copy of each token for each of its experts.
inline std::int64_t rows_of_microbatch(const WalkContext& c) {
  return c.ep.ranks() > 1 ? c.ep.rows : routed_tokens(c) * c.model.experts.per_token;
}

/// One number for each choice of the rank's tokens, or of those that it receives for its experts.
enum class Tokens : std::uint8_t { own, received };
kernels::Tensor of_choices(const WalkContext&, kernels::Arena&, kernels::DType, Tokens);

/// Memory for the router's results, until the weight gradients have read them.
void take_routes(const WalkContext&, kernels::Arena&, SegmentState&);
/// Chooses experts for the tokens, sends the choices, and sorts the rank's.
void route(const WalkContext&, const LayerParams&, const SegmentState&, const kernels::Tensor& x_TD);
/// Adds how many tokens chose each expert to Batch::expert_counts.
void count_routes(const WalkContext&, const LayerParams&, const SegmentState&);

/// The gradient of the logits, with that of the balance loss, from that of the tokens' weights. Where tensor
/// parallelism cuts experts each rank has a part of it, and the first has all of the balance loss.
void route_backward(const WalkContext&, const SegmentState&, const kernels::Tensor& dweight_TK,
                    const LossTarget&);
/// From the gradient of the logits: adds that of the tokens; and the router's own, with the tokens.
void router_input_gradient(const WalkContext&, const LayerParams&, const SegmentState&,
                           const kernels::Tensor& dx_TD);
void router_gradient(const WalkContext&, const LayerParams&, const SegmentState&,
                     const kernels::Tensor& x_TD);

}  // namespace trainerd::core::model
