#pragma once

// Arguments of operators: loss. See ops.h.

#include <cstdint>

#include "kernels/ops/op_class.h"

namespace trainerd::kernels {

/// If `softcap` is not 0, every logit x is replaced by softcap tanh(x / softcap) (Gemma 2), in all statistics
/// and in the gradient, which is with respect to x.
///
/// Per token, over the vocabulary rows held here: max, sum of exp(logit - max), and the target's logit (0 if
/// another rank holds the target). Columns at or after `vocab` - `first_row` are padding and are ignored.
/// With label smoothing s the target is a distribution, 1 - s on the target plus s / vocab on every column
/// (Szegedy et al., arXiv 1512.00567, section 7). `target_logit_T` is then the part of the mean logit under
/// it that comes from the columns held, so parts of a vocabulary are summed as without smoothing.
struct CeStats {
  Tensor logits_TV;
  Tensor targets_T;  ///< i32
  std::int64_t first_row = 0;
  std::int64_t vocab = 0;
  float softcap = 0.0f;
  float label_smoothing = 0.0f;  ///< s
  Tensor max_T;
  Tensor sum_exp_T;
  Tensor target_logit_T;

  bool operator==(const CeStats&) const = default;
};
/// Rescales statistics of one part of the vocabulary to the max of all parts: sum_exp *= exp(max_local -
/// max). Used between the reductions of vocabulary parallelism: first the max over ranks, then this, then the
/// sums.
struct CeRescale {
  Tensor max_local_T;
  Tensor max_T;
  Tensor sum_exp_T;

  bool operator==(const CeRescale&) const = default;
};
/// loss[t] = weight[t] (lse - target_logit), lse = max + log sum_exp. dlogits = weight[t] grad_scale (softmax
/// - onehot), in place, times 1 - tanh^2 with a softcap. With label smoothing the target's distribution
/// (CeStats) replaces onehot. With z_loss, dlogits are those of loss[t] + z_loss[t], where z_loss[t] =
/// weight[t] z_loss lse^2 (Chowdhery et al., PaLM, arXiv 2204.02311, section 5): this adds weight[t]
/// grad_scale 2 z_loss lse softmax.
struct CeFinish {
  Tensor logits_TV;
  Tensor targets_T;
  Tensor loss_weight_T;  ///< f32
  std::int64_t first_row = 0;
  std::int64_t vocab = 0;
  float softcap = 0.0f;  ///< same as in the statistics
  Tensor max_T;
  Tensor sum_exp_T;
  Tensor target_logit_T;
  float grad_scale = 0.0f;
  Tensor loss_scale = {};        ///< f32 [1], optional: another factor of dlogits
  float label_smoothing = 0.0f;  ///< same as in the statistics
  float z_loss = 0.0f;
  Tensor loss_T;         ///< f32
  Tensor z_loss_T = {};  ///< f32; undefined without z_loss
  enum class Want : std::uint8_t { loss, loss_and_gradient } want = Want::loss_and_gradient;

  bool operator==(const CeFinish&) const = default;
};

/// CeStats and CeFinish with the gradient, for a vocabulary that is not split. One operator, so that a row of
/// logits can be read once. Also assigns the statistics.
struct CeLoss {
  Tensor logits_TV;
  Tensor targets_T;
  Tensor loss_weight_T;  ///< f32
  static constexpr std::int64_t first_row = 0;
  std::int64_t vocab = 0;
  float softcap = 0.0f;
  float grad_scale = 0.0f;
  Tensor loss_scale = {};
  float label_smoothing = 0.0f;
  float z_loss = 0.0f;
  Tensor max_T;
  Tensor sum_exp_T;
  Tensor target_logit_T;
  Tensor loss_T;         ///< f32
  Tensor z_loss_T = {};  ///< f32; undefined without z_loss
  bool operator==(const CeLoss&) const = default;
};
inline CeStats stats_of(const CeLoss& a) {
  return {.logits_TV = a.logits_TV,
          .targets_T = a.targets_T,
          .vocab = a.vocab,
          .softcap = a.softcap,
          .label_smoothing = a.label_smoothing,
          .max_T = a.max_T,
          .sum_exp_T = a.sum_exp_T,
          .target_logit_T = a.target_logit_T};
}
inline CeFinish finish_of(const CeLoss& a) {
  return {.logits_TV = a.logits_TV,
          .targets_T = a.targets_T,
          .loss_weight_T = a.loss_weight_T,
          .vocab = a.vocab,
          .softcap = a.softcap,
          .max_T = a.max_T,
          .sum_exp_T = a.sum_exp_T,
          .target_logit_T = a.target_logit_T,
          .grad_scale = a.grad_scale,
          .loss_scale = a.loss_scale,
          .label_smoothing = a.label_smoothing,
          .z_loss = a.z_loss,
          .loss_T = a.loss_T,
          .z_loss_T = a.z_loss_T};
}

/// Direct preference optimisation for pairs of answers of S tokens each (Rafailov et al., arXiv 2305.18290,
/// equation 7; label smoothing as in cDPO, Mitchell 2023). With log p the sum of an answer's
/// log-probabilities and x = beta ((log p chosen - reference chosen) - (log p rejected - reference
/// rejected)), the loss of a pair is -(1 - s) log sigmoid(x) - s log sigmoid(-x). Its gradient with respect
/// to a token's logits is that of the token's own loss weighted by `weight_T`, which CeFinish computes. Sums
/// are in double. A pair in which all weights are 0 is padding and adds nothing.
struct PreferenceLoss {
  Tensor loss_T;         ///< f32 [P S]: weight times -log probability of each token (CeFinish)
  Tensor loss_weight_T;  ///< f32 [P S]: 1 on tokens of the chosen answer, -1 on the rejected one, 0 elsewhere
  Tensor reference_P2;   ///< f64: log p chosen and rejected of the reference
  float beta = 0.0f;
  float label_smoothing = 0.0f;  ///< s
  Tensor weight_T = {};  ///< f32 [P S], optional: loss_weight beta ((1 - s) sigmoid(-x) - s sigmoid(x))
  Tensor logps_P2;       ///< f64: log p chosen and rejected
  Tensor loss = {};      ///< f64 [1], optional: the losses of all pairs are added to it
  /// f64 [3], optional, added to: x, the number of pairs with x > 0, and beta (log p - reference) of the
  /// chosen answer.
  Tensor rewards = {};

  bool operator==(const PreferenceLoss&) const = default;
};

inline OpClass op_class(const CeStats& a) { return memory_class(a.logits_TV); }
inline OpClass op_class(const CeFinish& a) { return memory_class(a.logits_TV); }
inline OpClass op_class(const CeLoss& a) { return memory_class(a.logits_TV); }

}  // namespace trainerd::kernels
