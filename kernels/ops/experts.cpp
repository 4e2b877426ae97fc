#include "kernels/ops/experts.h"

#include <algorithm>
#include <initializer_list>

namespace trainerd::kernels {
namespace {

bool activation(const Tensor& x) { return is_float(x.dtype); }

bool like(const Tensor& x, DType dtype, const Shape& shape) { return x.dtype == dtype && x.shape == shape; }

/// Throws if `expert_TK` is not i32 [T, K].
void check_choice(const Tensor& expert_TK) {
  base::check(expert_TK.dtype == DType::i32 && expert_TK.shape.ndim == 2, "experts: choices are i32 [T, K]");
}

void check_count(const Tensor& count_BE, std::int64_t own, const TokenRange& range) {
  const std::int64_t all = range.tokens(own);
  base::check(count_BE.dtype == DType::f32 && count_BE.shape.ndim == 2 && range.chunks >= 1 &&
                  all % (range.chunks * count_BE.size(0)) == 0 && range.first >= 0 &&
                  range.first + own <= all,
              "experts: counts are f32 [B, E], and sequences have equal chunks");
}

/// Throws if rows, weight and bounds of a GEMM disagree.
void check_product(const Tensor& rows_RN, const Tensor& rows_RC, const Tensor& weight_NC,
                   const Tensor& first_E) {
  const std::int64_t experts = first_E.numel() - 1;
  base::check(first_E.dtype == DType::i32 && experts >= 1, "experts: first rows are i32 [E + 1]");
  base::check(activation(rows_RN) && rows_RC.dtype == rows_RN.dtype && rows_RN.shape.ndim == 2 &&
                  rows_RC.shape.ndim == 2 && weight_NC.shape.ndim == 2 &&
                  rows_RN.size(0) == rows_RC.size(0) && weight_NC.size(0) == experts * rows_RN.size(1) &&
                  weight_NC.size(1) == rows_RC.size(1),
              "experts: shapes of rows and weights");
}

}  // namespace

void check_args(const RouteForward& a) {
  check_choice(a.expert_TK);
  base::check(activation(a.logits_TE) && a.logits_TE.shape.ndim == 2 && a.logits_TE.size(1) <= kMostExperts &&
                  a.logits_TE.size(0) == a.expert_TK.size(0) && a.expert_TK.size(1) <= a.logits_TE.size(1) &&
                  like(a.probs_TE, DType::f32, a.logits_TE.shape) &&
                  like(a.weight_TK, DType::f32, a.expert_TK.shape) &&
                  (!a.real_T.defined() || like(a.real_T, DType::i32, {a.logits_TE.size(0)})) &&
                  (!a.bias_E.defined() || like(a.bias_E, DType::f32, {a.logits_TE.size(1)})),
              "route: shapes of logits, scores, choices, weights, biases and the padding's mask");
  if (a.groups == 1) return;
  const std::int64_t experts = a.logits_TE.size(1), each = experts / std::max<std::int64_t>(1, a.groups);
  base::check(a.groups >= 1 && a.groups <= kMostExpertGroups && experts % a.groups == 0 &&
                  each >= experts_to_rank(a.score) && a.top_groups >= 1 && a.top_groups <= a.groups &&
                  a.top_groups * each >= a.expert_TK.size(1),
              "route: equal groups, and enough experts in those that are chosen");
}

std::int64_t experts_to_rank(RouterScore score) { return score == RouterScore::sigmoid ? 2 : 1; }

void check_args(const RouteBackward& a) {
  check_choice(a.expert_TK);
  base::check(activation(a.dlogits_TE) && like(a.probs_TE, DType::f32, a.dlogits_TE.shape) &&
                  a.probs_TE.size(1) <= kMostExperts && a.probs_TE.size(0) == a.expert_TK.size(0) &&
                  like(a.dweight_TK, DType::f32, a.expert_TK.shape),
              "route: shapes of scores, choices and gradients");
  if (!a.count_BE.defined()) return;
  check_count(a.count_BE, a.probs_TE.size(0), a.range);
  base::check(a.count_BE.size(1) == a.probs_TE.size(1) && a.loss_weight_T.dtype == DType::f32 &&
                  a.loss_weight_T.numel() == a.probs_TE.size(0),
              "route: a count for each expert, a loss weight for each token");
  base::check(!a.loss_T.defined() || like(a.loss_T, DType::f32, {a.probs_TE.size(0)}),
              "route: a loss for each token");
}

void check_args(const CountExperts& a) {
  check_choice(a.expert_TK);
  check_count(a.count_BE, a.expert_TK.size(0), a.range);
}

void check_args(const SortExperts& a) {
  check_choice(a.expert_TK);
  base::check(a.first_E.dtype == DType::i32 && a.first_E.numel() >= 2 &&
                  a.first_E.numel() <= kMostExperts + 1 && a.source_R.dtype == DType::i32 &&
                  a.source_R.numel() <= a.expert_TK.numel() && like(a.row_TK, DType::i32, a.expert_TK.shape),
              "sort experts: at most a row for each copy");
  base::check(a.flag.defined() ? a.flag.dtype == DType::f32 && a.flag.numel() == 1
                               : a.source_R.numel() == a.expert_TK.numel(),
              "sort experts: a flag where there are fewer rows than copies");
}

void check_args(const GatherRows& a) {
  base::check(activation(a.from_TD) && a.from_TD.shape.ndim == 2 && a.source_R.dtype == DType::i32 &&
                  a.copies >= 1 && like(a.to_RD, a.from_TD.dtype, {a.source_R.numel(), a.from_TD.size(1)}),
              "gather rows: as many rows as sources, of one size");
}

void check_args(const CombineRows& a) {
  base::check(activation(a.from_RD) && a.from_RD.shape.ndim == 2 && a.row_TK.dtype == DType::i32 &&
                  a.row_TK.shape.ndim == 2 &&
                  like(a.to_TD, a.from_RD.dtype, {a.row_TK.size(0), a.from_RD.size(1)}) &&
                  (!a.weight_TK.defined() || like(a.weight_TK, DType::f32, a.row_TK.shape)),
              "combine rows: K rows for each token");
}

void check_args(const WeighRows& a) {
  base::check(activation(a.act_RF) && a.act_RF.shape.ndim == 2 &&
                  like(a.dact_RF, a.act_RF.dtype, a.act_RF.shape) && a.source_R.dtype == DType::i32 &&
                  a.source_R.numel() == a.act_RF.size(0) && a.weight_TK.dtype == DType::f32 &&
                  a.weight_TK.numel() >= a.source_R.numel() &&
                  like(a.dweight_TK, DType::f32, a.weight_TK.shape),
              "weigh rows: a weight for each row");
}

void check_args(const AddExpertBias& a) {
  check_weights(a.y_RN.dtype, a.bias_EN.dtype);
  base::check(a.y_RN.shape.ndim == 2 && a.first_E.dtype == DType::i32 &&
                  a.bias_EN.numel() == (a.first_E.numel() - 1) * a.y_RN.size(1),
              "expert bias: a bias for each column of each expert");
}

void check_args(const ExpertBiasBackward& a) {
  const bool weighted = a.weight_TK.defined();
  const Tensor& either = a.dbias_EN.defined() ? a.dbias_EN : a.bias_EN;
  base::check(activation(a.dy_RN) && a.dy_RN.shape.ndim == 2 && either.defined() && activation(either) &&
                  a.first_E.dtype == DType::i32 &&
                  either.numel() == (a.first_E.numel() - 1) * a.dy_RN.size(1),
              "expert bias: a gradient for each column of each expert");
  base::check(!weighted || (a.weight_TK.dtype == DType::f32 && a.source_R.dtype == DType::i32 &&
                            a.source_R.numel() == a.dy_RN.size(0)),
              "expert bias: a copy with a weight for each row");
  if (!a.bias_EN.defined()) return;
  check_weights(a.dy_RN.dtype, a.bias_EN.dtype);
  base::check(
      weighted && a.bias_EN.numel() == either.numel() && like(a.dweight_TK, DType::f32, a.weight_TK.shape),
      "expert bias: a gradient for each weight");
}

void check_args(const PlaceTokens& a) {
  check_choice(a.expert_TK);
  base::check(a.experts_of_rank >= 1 && like(a.slot_TK, DType::i32, a.expert_TK.shape) &&
                  a.source_NS.dtype == DType::i32 && a.source_NS.shape.ndim == 2 &&
                  a.flag.dtype == DType::f32 && a.flag.numel() == 1,
              "place tokens: a slot for each copy, sources i32 [N, S], a flag");
}

void check_args(const SlotChoices& a) {
  check_choice(a.expert_TK);
  const Shape slots{a.source_NS.numel(), a.expert_TK.size(1)};
  base::check(like(a.weight_TK, DType::f32, a.expert_TK.shape) && a.source_NS.dtype == DType::i32 &&
                  like(a.expert_RK, DType::i32, slots) && like(a.weight_RK, DType::f32, slots),
              "slot choices: K choices and weights for each token and slot");
}

void check_args(const SlotWeights& a) {
  base::check(a.from_RK.dtype == DType::f32 && a.from_RK.shape.ndim == 2 && a.slot_TK.dtype == DType::i32 &&
                  like(a.weight_TK, DType::f32, a.slot_TK.shape) && a.from_RK.size(1) == a.slot_TK.size(1),
              "slot weights: K weights for each slot and token");
}

namespace {

void check_format(GemmFormat format, const Tensor& x) {
  base::check(format == GemmFormat::plain || x.dtype == DType::bf16,
              "experts: FP8 operands are rounded from bf16");
}

}  // namespace

void check_args(const ExpertFprop& a) {
  check_format(a.format, a.x_RC);
  check_product(a.y_RN, a.x_RC, a.weight_NC, a.first_E);
  base::check(a.weight_NC.dtype == a.x_RC.dtype, "experts: activations and weights are of one dtype");
}
void check_args(const ExpertDgrad& a) {
  check_format(a.format, a.dy_RN);
  check_product(a.dy_RN, a.dx_RC, a.weight_NC, a.first_E);
  base::check(a.weight_NC.dtype == a.dy_RN.dtype, "experts: activations and weights are of one dtype");
}
void check_args(const ExpertWgrad& a) {
  check_format(a.format, a.x_RC);
  check_product(a.dy_RN, a.x_RC, a.dweight_NC, a.first_E);
  base::check(activation(a.dweight_NC), "experts: gradients are f32 or bf16");
}

}  // namespace trainerd::kernels
