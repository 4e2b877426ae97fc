#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/ops.h"

namespace trainerd::core::job {

/// Consecutive steps of one global batch.
struct BatchSpan {
  std::int64_t global = 0, steps = 0;
  bool operator==(const BatchSpan&) const = default;
};

/// Sizes in sequences. Steps count from 1.
struct BatchOptions {
  std::int64_t global = 0;           ///< per optimizer step, over all data-parallel ranks
  std::int64_t micro = 0;            ///< per forward pass of one rank
  std::vector<BatchSpan> ramp = {};  ///< the first steps; `global` is of all that follow

  std::int64_t of_step(std::int64_t step) const;
  /// The steps after `from` up to `to`.
  std::vector<BatchSpan> spans(std::int64_t from, std::int64_t to) const;
  /// Sequences of those steps.
  std::int64_t sequences(std::int64_t from, std::int64_t to) const;
  /// Each different global batch, `global` first.
  std::vector<std::int64_t> sizes() const;

  bool operator==(const BatchOptions&) const = default;
};

enum class LrKind : std::uint8_t { constant, cosine, linear, wsd };

/// Learning rate as a function of the step (from 1): linear warm-up over `warmup` steps, then by kind down to
/// `min_lr` at the last step. wsd: constant, then linear over the last `decay` steps.
struct LrSchedule {
  LrKind kind = LrKind::cosine;
  std::int64_t warmup = 0;
  double min_lr = 0;
  std::int64_t decay = 0;  ///< wsd only; 0 means a tenth of all steps

  bool operator==(const LrSchedule&) const = default;
};

/// Direct preference optimisation, replaces the cross entropy: kernels::PreferenceLoss. The reference model
/// has the run's initial weights.
struct DpoOptions {
  double beta = 0;             ///< 0: off
  double label_smoothing = 0;  ///< probability that a pair is in the wrong order

  bool on() const { return beta > 0; }
  bool operator==(const DpoOptions&) const = default;
};

/// Training losses in addition to or in place of the cross entropy. Evaluations use only the cross entropy.
struct LossOptions {
  double label_smoothing = 0;  ///< of the cross entropy's target: kernels::CeStats
  double z_loss = 0;           ///< factor of the mean of logsumexp(logits)^2: kernels::CeFinish
  double expert_balance = 0;   ///< factor of the experts' balance loss: kernels::RouteBackward
  DpoOptions dpo = {};

  bool operator==(const LossOptions&) const = default;
};

/// An exponential moving average of the trained weights (Polyak and Juditsky, 1992), kept in addition to
/// them.
struct AverageOptions {
  double decay = 0;        ///< 0: off
  std::int64_t every = 1;  ///< steps between its updates

  bool on() const { return decay > 0; }
  bool operator==(const AverageOptions&) const = default;
};

enum class OptimizerKind : std::uint8_t {
  adamw,
  lion,
  sgd,
  muon,  ///< for the layers' matrices; AdamW updates all else
};
constexpr const char* to_string(OptimizerKind kind) {
  constexpr const char* kNames[] = {"adamw", "lion", "sgd", "muon"};
  return kNames[static_cast<int>(kind)];
}

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;  ///< key `name`
  double lr = 3e-4;
  double momentum = 0.95;  ///< muon and sgd only, as `nesterov`
  bool nesterov = true;
  double adamw_lr = 3e-4;  ///< muon only: peak rate of AdamW's part; follows the same schedule
  double beta1 = 0.9;      ///< not of sgd, as `beta2`; `eps`: of AdamW
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< on matrices; norms, biases and 1-d parameters get none
  double grad_clip = 1.0;     ///< global norm; 0 turns clipping off
  LrSchedule schedule;
  AverageOptions average;          ///< top-level key `ema`
  double expert_bias_rate = 1e-3;  ///< change of experts' biases in a step
  bool offload = false;            ///< master weights and states are in host memory

  bool operator==(const OptimizerOptions&) const = default;
};

/// Scaling of the loss's gradient, so that gradients of fp16 activations do not underflow:
/// kernels::LossScaleUpdate.
struct LossScaling {
  bool dynamic = false;  ///< key `loss_scale`; false: none
  double initial = 65536;
  double least = 1;            ///< key `min_loss_scale`; an overflow at it ends the run
  std::int64_t window = 1000;  ///< key `loss_scale_window`: updates after which the scale doubles

  bool operator==(const LossScaling&) const = default;
};

/// Data types of a training recipe. Accumulation inside an operator is always fp32.
struct PrecisionRecipe {
  std::string name = "fp32";                              ///< fp32 | bf16 | fp16 | fp8 | custom
  kernels::DType compute = kernels::DType::f32;           ///< activations and GEMM operands
  kernels::GemmFormat gemm = kernels::GemmFormat::plain;  ///< of the products of layers' linear layers
  kernels::DType params = kernels::DType::f32;            ///< weights read by the forward pass
  kernels::DType grads = kernels::DType::f32;             ///< accumulated parameter gradients
  kernels::DType reduce = kernels::DType::f32;  ///< gradients between ranks; fp32: as `grads` holds them
  kernels::DType master = kernels::DType::f32;  ///< weights updated by the optimizer
  kernels::DType moments = kernels::DType::f32;
  kernels::Rounding rounding = kernels::Rounding::nearest;  ///< of master weights and second moments in bf16
  LossScaling loss_scale = {};

  /// True if ranks exchange gradients in bf16 and each sums its part (parallel::RoundedSum).
  bool exchanges_gradients() const { return reduce == kernels::DType::bf16; }

  bool operator==(const PrecisionRecipe&) const = default;
};

/// Multiple-choice questions; the right answer should have the highest likelihood.
struct ChoiceSet {
  std::string name;            ///< name of its accuracy metric
  std::string path;            ///< a JSONL file: prompt, choices, answer
  std::int64_t questions = 0;  ///< from its start; 0: all

  bool operator==(const ChoiceSet&) const = default;
};

struct EvaluateOptions {
  std::int64_t every = 0;      ///< steps; 0 never
  std::int64_t batches = 0;    ///< global batches of each validation set, from its start
  std::string tokenizer = {};  ///< a file or "bytes"; empty: that of the data
  std::vector<ChoiceSet> choices = {};
  bool average = false;  ///< key `ema`: evaluate the averaged weights

  bool operator==(const EvaluateOptions&) const = default;
};

/// Steps that leave a trace in the output directory.
struct TraceOptions {
  std::vector<std::int64_t> steps;

  bool operator==(const TraceOptions&) const = default;
};

}  // namespace trainerd::core::job
