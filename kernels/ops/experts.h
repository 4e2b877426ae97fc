#pragma once

// Arguments of operators: layers of experts. See ops.h. Beside its letters: E experts, K experts of a token,
// R = T K rows, one for each expert of each token. Rows are sorted by expert, and rows of one expert by
// token.

#include <cstdint>

#include "kernels/ops/op_class.h"

namespace trainerd::kernels {

/// Limit of E, and of its groups.
constexpr std::int64_t kMostExperts = 512, kMostExpertGroups = 32;

/// Score of an expert: its probability under a softmax over all experts, or the sigmoid of its logit alone
/// (DeepSeek-V3).
enum class RouterScore : std::uint8_t { softmax, sigmoid };

/// Which tokens of a batch an operator's T tokens are, for losses of whole sequences: `all` tokens (0: these
/// T) are ordered [chunk][sequence][token of the sequence's chunk], and the T begin with token `first`.
struct TokenRange {
  std::int64_t chunks = 1, first = 0, all = 0;

  std::int64_t tokens(std::int64_t own) const { return all > 0 ? all : own; }
  bool operator==(const TokenRange&) const = default;
};

/// Chooses the K experts of each token with the largest sums of score and bias; of equal ones the first. With
/// several groups of consecutive experts, only among those of the `top_groups` groups with the largest value:
/// with RouterScore::softmax that of its best expert (DeepSeek-V2), with sigmoid the sum of its two best
/// (DeepSeek-V3).
/// Their weights are their scores, divided by their sum if `normalise`, times `factor`. Padding has the
/// expert -1, K times, with weight 0.
struct RouteForward {
  Tensor logits_TE;  ///< activation dtype
  RouterScore score = RouterScore::softmax;
  Tensor bias_E = {};  ///< f32, optional
  std::int64_t groups = 1, top_groups = 1;
  bool normalise = true;
  float factor = 1;
  Tensor real_T = {};  ///< i32, optional: 0 for padding
  Tensor probs_TE;     ///< f32: the scores
  Tensor expert_TK;    ///< i32, in the order of the choice
  Tensor weight_TK;    ///< f32

  bool operator==(const RouteForward&) const = default;
};
/// Gradient of the logits from that of the weights. With `count_BE`, also that of the balance loss
/// (Fedus et al., Switch Transformers, JMLR 23, 2022, section 2.2, of each sequence separately): the loss of
/// token t is `balance` times the sum over experts of count[b] / (sum of count[b]) p[t], where b is t's
/// sequence, with the token's loss weight. p are the scores, if these are sigmoids divided by their sum
/// (DeepSeek-V3, section 2.1.2). The gradient of padding's logits is 0.
struct RouteBackward {
  Tensor probs_TE;
  Tensor expert_TK;
  RouterScore score = RouterScore::softmax;
  bool normalise = true;
  float factor = 1;
  Tensor dweight_TK;  ///< f32
  Tensor dlogits_TE;  ///< activation dtype
  float balance = 0;
  Tensor count_BE;         ///< optional, of CountExperts, for all tokens
  TokenRange range = {};   ///< as there
  Tensor loss_weight_T;    ///< f32, with `count_BE`
  Tensor loss_T = {};      ///< f32, optional, with `count_BE`: the balance loss of each token; 0 for padding
  Tensor loss_scale = {};  ///< f32 [1], optional: factor of the balance loss's gradient

  bool operator==(const RouteBackward&) const = default;
};
/// count[b, e] = how many of the T tokens are of sequence b and chose expert e, without padding.
struct CountExperts {
  Tensor expert_TK;
  Tensor count_BE;  ///< f32
  TokenRange range = {};
  WriteMode mode = WriteMode::assign;

  bool operator==(const CountExperts&) const = default;
};

/// Sorts the copies t K + k of tokens whose expert is one of the E experts from `first_expert` on, by expert.
/// It is stable. Copies of other experts, and of padding (-1), have no row. R rows hold the rest; if there
/// are more copies, the last are left out, and flag[0] becomes `flag_value`.
struct SortExperts {
  Tensor expert_TK;
  std::int64_t first_expert = 0;
  Tensor first_E;   ///< i32, E + 1: the first row of each expert, and the number of rows in use
  Tensor source_R;  ///< i32: the copy in each row; -1 in rows that are not in use
  Tensor row_TK;    ///< i32: the row of each copy; -1 for copies without a row
  Tensor flag;      ///< f32 [1]; optional if R is T K
  float flag_value = 1;

  bool operator==(const SortExperts&) const = default;
};
/// to[r] = from[source[r] / K] for rows in use.
struct GatherRows {
  Tensor from_TD;
  Tensor source_R;
  std::int64_t copies = 1;      ///< K
  Tensor to_RD;                 ///< in the dtype of `from_TD`
  std::int64_t usual_rows = 0;  ///< see `rows_in_use`

  bool operator==(const GatherRows&) const = default;
};
/// to[t] = sum over k of weight[t, k] from[row[t, k]], in fp32, rounded once. Copies with row -1 are left
/// out.
struct CombineRows {
  Tensor from_RD;
  Tensor row_TK;
  Tensor weight_TK;             ///< optional: weights of 1
  Tensor to_TD;                 ///< in the dtype of `from_RD`
  std::int64_t usual_rows = 0;  ///< see `rows_in_use`

  bool operator==(const CombineRows&) const = default;
};
/// Of the copy s of each row in use: dweight[s] = dact . act, the sum over the row; then dact *= weight[s]
/// and act
/// *= weight[s]. So `dact` becomes the gradient of act, if it was that of weight[s] act. Other elements of
/// `dweight` stay.
struct WeighRows {
  Tensor source_R;
  Tensor weight_TK;
  Tensor dact_RF;
  Tensor act_RF;
  Tensor dweight_TK;            ///< f32
  std::int64_t usual_rows = 0;  ///< see `rows_in_use`

  bool operator==(const WeighRows&) const = default;
};

/// y[r] += bias[e], for rows r in use, of expert e.
struct AddExpertBias {
  Tensor y_RN;
  Tensor bias_EN;               ///< E N elements
  Tensor first_E;               ///< as in SortExperts
  std::int64_t usual_rows = 0;  ///< see `rows_in_use`

  bool operator==(const AddExpertBias&) const = default;
};
/// The gradient of biases: dbias[e] is the sum of dy[r] over the rows of e, in fp32. With
/// `weight_TK` that of rows that are added up with weights, of the copies in `source_R`: the sum of weight[s]
/// dy[r]. Then with `bias_EN` also dweight[s] += dy[r] . bias[e], what the bias adds to the weights' gradient
/// (WeighRows).
struct ExpertBiasBackward {
  Tensor dy_RN;
  Tensor first_E;
  Tensor dbias_EN;  ///< f32 or bf16; optional with `bias_EN`
  WriteMode mode = WriteMode::accumulate;
  Tensor source_R = {};
  Tensor weight_TK = {};   ///< f32
  Tensor bias_EN = {};     ///< optional, with `weight_TK`
  Tensor dweight_TK = {};  ///< f32, with `bias_EN`
  std::int64_t usual_rows = 0;

  bool operator==(const ExpertBiasBackward&) const = default;
};

/// Assigns tokens to slots for an all-to-all between ranks. Rank n holds the experts e with
/// e / experts_of_rank = n, and has S slots. A token takes one slot per rank whose experts it chose, in the
/// order of tokens. slot[t, k] is n S + i: slot i of the rank of expert[t, k], as `same_slot` if an earlier
/// choice of the token took it. It is -1 if expert[t, k] is -1, or the slots are full: flag[0] = flag_value.
struct PlaceTokens {
  Tensor expert_TK;
  std::int64_t experts_of_rank = 1;
  Tensor slot_TK;    ///< i32
  Tensor source_NS;  ///< i32: a copy t K + k of the slot's token; -1 in empty slots
  Tensor flag;       ///< f32 [1]
  float flag_value = 1;

  bool operator==(const PlaceTokens&) const = default;
};
/// The slot of a copy as one that its token has already; the inverse is the same.
constexpr std::int32_t same_slot(std::int32_t slot) { return -2 - slot; }
/// The choices of the tokens in slots, with their weights; -1 and 0 in empty slots.
struct SlotChoices {
  Tensor expert_TK;
  Tensor weight_TK;  ///< f32
  Tensor source_NS;
  Tensor expert_RK;  ///< i32, R = N S
  Tensor weight_RK;  ///< f32

  bool operator==(const SlotChoices&) const = default;
};
/// weight[t, k] = from[slot, k], with the slot of slot[t, k]; 0 without one.
struct SlotWeights {
  Tensor from_RK;  ///< f32
  Tensor slot_TK;
  Tensor weight_TK;  ///< f32

  bool operator==(const SlotWeights&) const = default;
};

/// The GEMMs of experts: those of LinearFprop, LinearDgrad and LinearWgrad for the rows of each expert e and
/// the weight rows [e N, (e + 1) N). `first_E` as in SortExperts. Results have no defined value in rows that
/// are not in use. With GemmFormat::fp8 blocks of weights and of rows begin at the first row of each expert.
struct ExpertFprop {
  Tensor x_RC;
  Tensor weight_NC;  ///< [E N, C]
  Tensor first_E;
  Tensor y_RN;
  GemmFormat format = GemmFormat::plain;
  std::int64_t usual_rows = 0;  ///< see `rows_in_use`

  bool operator==(const ExpertFprop&) const = default;
};
struct ExpertDgrad {
  Tensor dy_RN;
  Tensor weight_NC;
  Tensor first_E;
  Tensor dx_RC;
  GemmFormat format = GemmFormat::plain;
  std::int64_t usual_rows = 0;  ///< see `rows_in_use`

  bool operator==(const ExpertDgrad&) const = default;
};
struct ExpertWgrad {
  Tensor dy_RN;
  Tensor x_RC;
  Tensor first_E;
  Tensor dweight_NC;  ///< zero, or unchanged, where an expert has no rows
  WriteMode mode = WriteMode::accumulate;
  GemmFormat format = GemmFormat::plain;
  std::int64_t usual_rows = 0;  ///< see `rows_in_use`

  bool operator==(const ExpertWgrad&) const = default;
};

/// Each throws std::logic_error if shapes or dtypes do not match. Every backend calls them, including the
/// meta backend.
/// Number of a group's best experts whose sum is the group's value.
std::int64_t experts_to_rank(RouterScore score);
void check_args(const RouteForward&);
void check_args(const RouteBackward&);
void check_args(const CountExperts&);
void check_args(const SortExperts&);
void check_args(const GatherRows&);
void check_args(const CombineRows&);
void check_args(const WeighRows&);
void check_args(const AddExpertBias&);
void check_args(const ExpertBiasBackward&);
void check_args(const PlaceTokens&);
void check_args(const SlotChoices&);
void check_args(const SlotWeights&);
void check_args(const ExpertFprop&);
void check_args(const ExpertDgrad&);
void check_args(const ExpertWgrad&);

inline OpClass op_class(const RouteForward& a) { return memory_class(a.logits_TE); }
inline OpClass op_class(const RouteBackward& a) { return memory_class(a.dlogits_TE); }
inline OpClass op_class(const CountExperts&) { return {}; }
inline OpClass op_class(const SortExperts&) { return {}; }
inline OpClass op_class(const GatherRows& a) { return memory_class(a.from_TD); }
inline OpClass op_class(const CombineRows& a) { return memory_class(a.from_RD); }
inline OpClass op_class(const WeighRows& a) { return memory_class(a.act_RF); }
inline OpClass op_class(const AddExpertBias& a) { return memory_class(a.y_RN); }
inline OpClass op_class(const ExpertBiasBackward& a) { return memory_class(a.dy_RN); }
inline OpClass op_class(const PlaceTokens&) { return {}; }
inline OpClass op_class(const SlotChoices&) { return {}; }
inline OpClass op_class(const SlotWeights&) { return {}; }
/// How many rows of `rows` are in use on average, for costs. 0: all.
template <class Args>
std::int64_t rows_in_use(const Args& a, const Tensor& rows) {
  return a.usual_rows > 0 ? a.usual_rows : rows.size(0);
}

inline OpClass experts_class(GemmRole role, const Tensor& in, const Tensor& out, std::int64_t m,
                             std::int64_t n, std::int64_t k, GemmFormat format) {
  OpClass what = gemm_class(role, in.dtype, out.dtype, m, n, k, format);
  what.kind = OpClass::Kind::experts;
  return what;
}
inline OpClass op_class(const ExpertFprop& a) {
  OpClass what = experts_class(GemmRole::fprop, a.x_RC, a.y_RN, rows_in_use(a, a.y_RN), a.y_RN.size(1),
                               a.x_RC.size(1), a.format);
  if (what.rounded > 0) what.rounded = what.m * what.k + a.weight_NC.numel();
  return what;
}
inline OpClass op_class(const ExpertDgrad& a) {
  OpClass what = experts_class(GemmRole::dgrad, a.dy_RN, a.dx_RC, rows_in_use(a, a.dx_RC), a.dx_RC.size(1),
                               a.dy_RN.size(1), a.format);
  if (what.rounded > 0) what.rounded = what.m * what.k + a.weight_NC.numel();
  return what;
}
inline OpClass op_class(const ExpertWgrad& a) {
  OpClass what =
      experts_class(GemmRole::wgrad, a.x_RC, a.dweight_NC, a.dweight_NC.size(0), a.dweight_NC.size(1),
                    rows_in_use(a, a.dy_RN) / (a.first_E.numel() - 1), a.format);
  if (what.rounded > 0) what.rounded = rows_in_use(a, a.dy_RN) * (a.dy_RN.size(1) + a.x_RC.size(1));
  what.adds = a.mode == WriteMode::accumulate;
  return what;
}

}  // namespace trainerd::kernels
