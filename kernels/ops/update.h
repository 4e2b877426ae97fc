#pragma once

// Arguments of operators: update. See ops.h.

#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/base/error.h"
#include "kernels/ops/op_class.h"

namespace trainerd::kernels {

/// Device values that control the update, equal on every rank. Written by `step_control`, read by the
/// updates.
struct StepControlValues {
  double grad_norm = 0;         ///< global, before clipping; may be inf or nan
  float grad_factor = 0;        ///< factor of each gradient: converts sums to the mean, and clips
  std::int32_t skip = 0;        ///< not 0: no update; one of kSkip...
  std::int32_t nonfinite = -1;  ///< from `TotalSquareSum`, on this rank
  float loss_scale = 1;         ///< factor that the gradients have
  /// 1 / (1 - beta^t) of both moments of AdamW; 0: for t = ParamUpdate::step
  float correction1 = 0, correction2 = 0;

  static constexpr std::int32_t kSkipNonfinite = 1;  ///< a gradient or the loss is not finite
  static constexpr std::int32_t kSkipEmpty = 2;      ///< no token has a loss weight
  static constexpr std::int32_t kSkipJudged = 3;     ///< decided by the host
  static constexpr std::int32_t kSkipOutside = 4;    ///< an id is outside the vocabulary
  static constexpr std::int32_t kSkipCrowded = 5;    ///< a rank's experts lacked rows for their tokens
  static constexpr std::int32_t kSkipOverflow = 6;   ///< gradients overflowed, and the loss scale can go down
};

/// State of dynamic loss scaling (Micikevicius et al., Mixed Precision Training, arXiv 1710.03740): an f32
/// tensor of these values. Counts are exact up to 2^24.
struct LossScaleState {
  float value = 1;    ///< factor of the loss's gradient; a power of two
  float steps = 0;    ///< updates since the scale changed
  float skipped = 0;  ///< steps that updated nothing because gradients overflowed

  static constexpr std::int64_t kValues = 3;
};

/// Input: the square sum of all gradients, the loss and the sum of the loss weights, each over all ranks.
/// Output: the norm, the factor that converts gradients to the mean over the weights and clips them, and
/// whether to skip. Gradients are sums of weight x gradient / nominal_weight. Their mean is that times
/// nominal_weight / weight, a factor of exactly 1 if every token counts. The clip factor is min(1, clip /
/// norm).
///
/// With `loss_scale` gradients have its scale as another factor, which norm and factor take out. A gradient
/// that is not finite is then an overflow (kSkipOverflow) if the loss is finite and the scale is above
/// `min_loss_scale`. `step` minus the skipped steps is the t of AdamW's corrections.
struct StepControl {
  Tensor square_sum;          ///< f64 [1], of the gradients before scaling
  Tensor loss;                ///< f64 [1]
  Tensor weight;              ///< f64 [1]
  double nominal_weight = 1;  ///< weight of a global batch in which every token counts
  Tensor nonfinite;           ///< i32 [1]: copied to the output
  Tensor outside = {};        ///< f32 [1], optional: not 0 if a rank has an id outside the vocabulary
  /// f32 [1], optional: not 0 if a rank's experts had not enough rows. A value that is not finite takes
  /// precedence, unless it is an overflow: a router without finite logits chooses the first experts for every
  /// token.
  Tensor crowded = {};
  double clip_norm = 0;    ///< 0: no clipping
  Tensor values;           ///< uint8 [sizeof(StepControlValues)]
  Tensor loss_scale = {};  ///< optional: a LossScaleState
  double min_loss_scale = 1;
  std::int64_t step = 1;  ///< from 1
  float beta1 = 0, beta2 = 0;

  bool operator==(const StepControl&) const = default;
};

/// The loss scale after a step: divided by `factor` after an overflow, but not below `lowest`; multiplied by
/// `factor` after `growth_steps` updates without one, but not above `highest`. Steps that updated nothing for
/// another reason do not count.
struct LossScaleUpdate {
  Tensor state;    ///< a LossScaleState
  Tensor control;  ///< output of `StepControl`
  double factor = 2;
  double lowest = 1, highest = 1;
  std::int64_t growth_steps = 1;

  bool operator==(const LossScaleUpdate&) const = default;
};
/// The state after a step with this `StepControlValues::skip`.
constexpr LossScaleState updated(LossScaleState state, const LossScaleUpdate& a, std::int32_t skip) {
  if (skip == StepControlValues::kSkipOverflow) {
    const double lower = static_cast<double>(state.value) / a.factor;
    return {.value = static_cast<float>(lower > a.lowest ? lower : a.lowest),
            .steps = 0,
            .skipped = state.skipped + 1};
  }
  if (skip != 0) return state;
  state.steps += 1;
  if (static_cast<double>(state.steps) < static_cast<double>(a.growth_steps)) return state;
  const double higher = static_cast<double>(state.value) * a.factor;
  if (higher <= a.highest) state.value = static_cast<float>(higher);
  state.steps = 0;
  return state;
}
inline void check_args(const LossScaleUpdate& a) {
  base::check(a.state.dtype == DType::f32 && a.state.numel() == LossScaleState::kValues &&
                  a.control.bytes() == sizeof(StepControlValues),
              "loss scale: a state, and the control of the step");
}

/// A run of elements of the flat state with one weight decay. It is a box of one logical tensor: element i of
/// the run is element first + i / columns * stride + i % columns of the tensor.
struct UpdateRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  float weight_decay = 0;
  std::uint64_t key = 0;  ///< key of the tensor's random numbers
  std::int64_t first = 0, columns = 1, stride = 1;

  std::int64_t logical_index(std::int64_t i) const {
    return columns == stride ? first + i : first + i / columns * stride + i % columns;
  }
};

/// Rounding of a bf16 state. Stochastic rounding goes up with a probability equal to the distance from the
/// lower neighbour, so that updates below half a unit in the last place are not lost on average.
enum class Rounding : std::uint8_t { nearest, stochastic };

/// 1 / (1 - beta^t), computed in double.
inline float adam_correction(float beta, std::int64_t t) {
  return static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(beta), static_cast<double>(t))));
}

/// How `ParamUpdate` moves each weight w with its gradient g = grad * grad_factor, in fp32.
/// - `adamw` (Loshchilov and Hutter, arXiv 1711.05101): m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
///   w -= lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay w)
/// - `lion` (Chen et al., arXiv 2302.06675, algorithm 2): w -= lr (sign(b1 m + (1 - b1) g) + decay w);
///   then m = b2 m + (1 - b2) g
/// - `sgd`: m = b1 m + g; w -= lr (m + decay w), with `nesterov` w -= lr (g + b1 m + decay w), as
///   torch.optim.SGD does but for the decay, which does not enter m
enum class UpdateRule : std::uint8_t { adamw, lion, sgd };
constexpr bool has_second_moment(UpdateRule rule) { return rule == UpdateRule::adamw; }

/// Updates flat arrays by a rule. Does nothing if `control.skip` is set. `params` gets w in its own dtype,
/// rounded to nearest. `rounding` applies to w in bf16, and to the last moment in bf16. Its random bits are
/// one 32-bit `rounding_bits` per element: the low half for w, the high half for the moment. AdamW's m is
/// rounded to nearest, because it changes by a tenth of itself per step. v changes by less than bf16 can
/// represent if b2 is near 1, and so does the m of other rules.
struct ParamUpdate {
  std::span<const UpdateRange> ranges;
  Tensor grads;    ///< f32 or bf16, flat
  Tensor master;   ///< f32 or bf16, flat
  Tensor moment1;  ///< m: f32 or bf16
  Tensor moment2;  ///< v: same dtype as moment1; undefined if the rule has none
  /// optional: undefined if the master weights are the parameters, as required for bf16 master weights
  Tensor params;
  Tensor control;  ///< output of `StepControl`
  UpdateRule rule = UpdateRule::adamw;
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  bool nesterov = false;
  std::int64_t step = 1;  ///< t, from 1, unless the control has corrections
  Rounding rounding = Rounding::nearest;
  /// what is in host memory
  bool host_grads = false, host_master = false, host_moments = false, host_params = false;
};
/// Checks that dtypes are compatible, arrays have one length, and ranges rise within it.
inline void check_ranges(const ParamUpdate& a) {
  const auto is_float = [](const Tensor& t) { return t.dtype == DType::f32 || t.dtype == DType::bf16; };
  base::check(a.moment2.defined() == has_second_moment(a.rule),
              "update: a second moment if the rule has one");
  base::check(is_float(a.grads) && is_float(a.master) && is_float(a.moment1) &&
                  (!a.moment2.defined() || a.moment2.dtype == a.moment1.dtype),
              "update: gradients, master weights and moments in fp32 or bf16, both moments alike");
  base::check(a.master.dtype == DType::f32 || !a.params.defined(),
              "update: master weights in bf16 are the parameters");
  base::check(!a.params.defined() || a.params.dtype != DType::f16 || a.grads.dtype == DType::f32,
              "update: gradients of parameters in fp16 are in fp32");
  const std::int64_t n = a.master.numel();
  base::check(a.grads.numel() == n && a.moment1.numel() == n &&
                  (!a.moment2.defined() || a.moment2.numel() == n) &&
                  (!a.params.defined() || a.params.numel() == n),
              "update: all flat arrays have one length");
  std::int64_t last = 0;
  for (const UpdateRange& range : a.ranges) {
    base::check(range.begin >= last && range.count >= 0, "update: ranges rise and do not overlap");
    last = range.begin + range.count;
  }
  base::check(last <= n, "update: ranges lie within the flat state");
  if (a.rounding == Rounding::nearest) return;
  for (const UpdateRange& range : a.ranges)
    base::check(range.columns >= 1 && range.first >= 0, "update: a range is a box of its tensor");
}

/// Exponential moving average of weights, in fp32: average = decay average + (1 - decay) weights. Does
/// nothing if `control.skip` is set.
struct AverageUpdate {
  Tensor weights;  ///< f32 or bf16
  Tensor average;  ///< f32
  Tensor control;  ///< output of `StepControl`
  float decay = 0;
  bool host_weights = false, host_average = false;  ///< they are in host memory

  bool operator==(const AverageUpdate&) const = default;
};

/// Balances experts without a loss (Wang et al., Auxiliary-Loss-Free Load Balancing, arXiv 2408.15664,
/// algorithm 1): the bias of an expert with fewer tokens than the mean rises by `rate`, that of one with more
/// falls by it. Does nothing if `control.skip` is set.
struct ExpertBiasUpdate {
  Tensor count_E;  ///< f32: tokens that chose the expert, over all ranks
  Tensor bias_E;   ///< f32
  Tensor control;  ///< output of `StepControl`
  float rate = 0;

  bool operator==(const ExpertBiasUpdate&) const = default;
};
inline void check_args(const ExpertBiasUpdate& a) {
  base::check(a.count_E.dtype == DType::f32 && a.bias_E.dtype == DType::f32 && a.count_E.numel() > 0 &&
                  a.count_E.numel() == a.bias_E.numel(),
              "expert bias: a count for each bias, in fp32");
  base::check(a.control.bytes() == sizeof(StepControlValues),
              "expert bias: the control is one StepControlValues");
}

/// Standard normal values, or uniform ones on (-1, 1] (`normal_at`, `uniform_at` of kernels/tensor/rng.h).
enum class Draw : std::uint8_t { normal, uniform };

/// x[i] = mean + stddev * draw(key, index of element i in the logical tensor). The shard held is `rows` x
/// `columns` at (row, column) of a logical matrix with `logical_columns` columns. Elements outside the
/// logical matrix are 0.
struct InitNormal {
  Tensor x;  ///< f32, or bf16: the same values rounded to nearest
  Draw draw = Draw::normal;
  std::uint64_t key = 0;
  float stddev = 0;  ///< for uniform values: half of their range
  float mean = 0;
  std::int64_t row = 0, column = 0, rows = 0, columns = 0, logical_rows = 0, logical_columns = 0;

  bool operator==(const InitNormal&) const = default;
};

inline OpClass op_class(const LossScaleUpdate& a) { return memory_class(a.state); }
inline OpClass op_class(const ParamUpdate& a) { return memory_class(a.params); }
inline OpClass op_class(const AverageUpdate& a) { return memory_class(a.average); }
inline OpClass op_class(const ExpertBiasUpdate& a) { return memory_class(a.bias_E); }

}  // namespace trainerd::kernels
