#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/vector_kernels.h"
#include "kernels/cpu/tiling/blocks.h"
#include "kernels/tensor/rng.h"

namespace trainerd::kernels {
namespace {

// Elements whose random bits are on the stack at a time; a multiple of a vector.
constexpr std::int64_t kRandomElements = 1024;

/// Calls `act(done, count, random)` for pieces of the elements [from, from + count) of a range: the number of
/// elements before the piece, its size, and `rounding_bits` of its elements.
template <class Act>
void with_rounding_bits(const UpdateRange& range, std::int64_t from, std::int64_t count, std::int64_t step,
                        const Act& act) {
  std::array<std::uint32_t, kRandomElements> random;
  for (std::int64_t done = 0; done < count; done += kRandomElements) {
    const std::int64_t piece = std::min(kRandomElements, count - done);
    // Four neighbours share one Philox call.
    std::array<std::uint32_t, 4> words{};
    std::uint64_t quad = ~std::uint64_t{0};
    for (std::int64_t i = 0; i < piece; ++i) {
      const auto index = static_cast<std::uint64_t>(range.logical_index(from + done + i));
      if (index >> 2 != quad) words = philox(range.key, quad = index >> 2, static_cast<std::uint64_t>(step));
      random[static_cast<std::size_t>(i)] = words[index & 3u];
    }
    std::fill(random.begin() + piece, random.end(), 0u);
    act(done, piece, random.data());
  }
}

template <class Byte>
Byte* advanced(Byte* p, std::int64_t elements, DType dtype) {
  return p == nullptr ? nullptr : p + elements * size_of(dtype);
}

/// Updates `part` with its random bits. `from` is its first element, relative to its range.
void param_rounded(const VectorKernels& vector, const ParamRun& part, const UpdateRange& range,
                   std::int64_t from, std::int64_t step) {
  with_rounding_bits(range, from, part.count, step,
                     [&](std::int64_t done, std::int64_t count, const std::uint32_t* random) {
                       ParamRun piece = part;
                       piece.grads = advanced(part.grads, done, part.grad_dtype);
                       piece.master = advanced(part.master, done, part.master_dtype);
                       piece.moment1 = advanced(part.moment1, done, part.moment_dtype);
                       piece.moment2 = advanced(part.moment2, done, part.moment_dtype);
                       piece.params = advanced(part.params, done, part.param_dtype);
                       piece.count = count;
                       piece.random = random;
                       vector.param_update(piece);
                     });
}

void direction_rounded(const VectorKernels& vector, const DirectionRun& part, const UpdateRange& range,
                       std::int64_t from, std::int64_t step) {
  with_rounding_bits(range, from, part.count, step,
                     [&](std::int64_t done, std::int64_t count, const std::uint32_t* random) {
                       DirectionRun piece = part;
                       piece.direction += done;
                       piece.master = advanced(part.master, done, part.master_dtype);
                       piece.params = advanced(part.params, done, part.param_dtype);
                       piece.count = count;
                       piece.random = random;
                       vector.direction(piece);
                     });
}

StepControlValues control_of(const Tensor& control) {
  StepControlValues values;
  base::check(control.bytes() == sizeof(values), "an update's control is one StepControlValues");
  std::memcpy(&values, control.data, sizeof(values));
  return values;
}

LossScaleState loss_scale_of(const Tensor& state) {
  LossScaleState values;
  base::check(state.dtype == DType::f32 && state.bytes() == sizeof(values),
              "a loss scale is one LossScaleState");
  std::memcpy(&values, state.data, sizeof(values));
  return values;
}

}  // namespace

void CpuBackend::step_control(Stream&, const StepControl& a) {
  const double total = *a.square_sum.as<double>(), weight = *a.weight.as<double>();
  const double to_mean = weight > 0 ? a.nominal_weight / weight : 1;
  LossScaleState scaling;
  StepControlValues values;
  values.nonfinite = *a.nonfinite.as<std::int32_t>();
  if (a.loss_scale.defined()) {
    scaling = loss_scale_of(a.loss_scale);
    values.loss_scale = scaling.value;
    const auto correction = [&](float beta) {
      return adam_correction(beta, a.step - static_cast<std::int64_t>(scaling.skipped));
    };
    values.correction1 = correction(a.beta1), values.correction2 = correction(a.beta2);
  }
  // Scales are powers of two, so that this rounds nothing.
  const double factor = to_mean / static_cast<double>(scaling.value);
  const bool lowers = a.loss_scale.defined() && static_cast<double>(scaling.value) > a.min_loss_scale;
  values.grad_norm = std::sqrt(total) * factor;
  if (a.outside.defined() && *a.outside.as<float>() != 0) values.skip = StepControlValues::kSkipOutside;
  else if (!std::isfinite(*a.loss.as<double>()) || (!std::isfinite(total) && !lowers))
    values.skip = StepControlValues::kSkipNonfinite;
  else if (a.crowded.defined() && *a.crowded.as<float>() != 0) values.skip = StepControlValues::kSkipCrowded;
  else if (!std::isfinite(total)) values.skip = StepControlValues::kSkipOverflow;
  else if (weight == 0) values.skip = StepControlValues::kSkipEmpty;
  else
    values.grad_factor = static_cast<float>(
        a.clip_norm > 0 && values.grad_norm > a.clip_norm ? a.clip_norm / values.grad_norm * factor : factor);
  base::check(a.values.bytes() == sizeof(values), "step control: the output is one StepControlValues");
  std::memcpy(a.values.data, &values, sizeof(values));
}

void CpuBackend::loss_scale_update(Stream&, const LossScaleUpdate& a) {
  check_args(a);
  const LossScaleState state = updated(loss_scale_of(a.state), a, control_of(a.control).skip);
  std::memcpy(a.state.data, &state, sizeof(state));
}

void CpuBackend::param_update(Stream&, const ParamUpdate& a) {
  const StepControlValues control = control_of(a.control);
  if (control.skip != 0) return;

  check_ranges(a);

  ParamRun run;
  run.rule = a.rule;
  run.nesterov = a.nesterov;
  run.grad_dtype = a.grads.dtype;
  run.grad_factor = control.grad_factor;
  run.lr = a.lr;
  run.beta1 = a.beta1;
  run.beta2 = a.beta2;
  run.eps = a.eps;
  run.correction1 = control.correction1 != 0 ? control.correction1 : adam_correction(a.beta1, a.step);
  run.correction2 = control.correction2 != 0 ? control.correction2 : adam_correction(a.beta2, a.step);
  if (a.params.defined()) run.param_dtype = a.params.dtype;
  run.master_dtype = a.master.dtype;
  run.moment_dtype = a.moment1.dtype;
  for_each_block(pool_, a.master.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) {
    // The first range that ends after `begin`; the ends of ranges rise.
    auto range =
        std::upper_bound(a.ranges.begin(), a.ranges.end(), begin,
                         [](std::int64_t at, const UpdateRange& r) { return at < r.begin + r.count; });
    for (; range != a.ranges.end() && range->begin < end; ++range) {
      const std::int64_t from = std::max(begin, range->begin),
                         to = std::min(end, range->begin + range->count);
      ParamRun part = run;
      part.grads = a.grads.data + from * size_of(a.grads.dtype);
      part.master = a.master.data + from * size_of(a.master.dtype);
      part.moment1 = a.moment1.data + from * size_of(a.moment1.dtype);
      if (a.moment2.defined()) part.moment2 = a.moment2.data + from * size_of(a.moment2.dtype);
      if (a.params.defined()) part.params = a.params.data + from * size_of(a.params.dtype);
      part.count = to - from;
      part.weight_decay = range->weight_decay;
      if (a.rounding == Rounding::stochastic)
        param_rounded(vector_, part, *range, from - range->begin, a.step);
      else vector_.param_update(part);
    }
  });
}

void CpuBackend::momentum_update(Stream&, const MomentumUpdate& a) {
  const std::int64_t n = a.direction.numel();
  base::check(a.direction.dtype == DType::f32 && a.grads.numel() == n && a.momentum.numel() == n,
              "momentum: an fp32 direction as long as gradients and momentum");
  base::check(a.grads.dtype != DType::f16 && a.momentum.dtype != DType::f16,
              "momentum: gradients and momentum in fp32 or bf16");
  const StepControlValues control = control_of(a.control);
  for_each_block(pool_, n, kBlockElements, [&](std::int64_t begin, std::int64_t end) {
    float* direction = a.direction.as<float>() + begin;
    if (control.skip != 0) return std::fill(direction, direction + (end - begin), 0.0f);
    vector_.momentum({.grad_dtype = a.grads.dtype,
                      .momentum_dtype = a.momentum.dtype,
                      .grads = a.grads.data + begin * size_of(a.grads.dtype),
                      .momentum = a.momentum.data + begin * size_of(a.momentum.dtype),
                      .direction = direction,
                      .count = end - begin,
                      .grad_factor = control.grad_factor,
                      .mu = a.mu,
                      .nesterov = a.nesterov});
  });
}

void CpuBackend::average_update(Stream&, const AverageUpdate& a) {
  base::check(a.average.dtype == DType::f32 && a.weights.numel() == a.average.numel() &&
                  a.weights.dtype != DType::f16,
              "average: fp32 of as many weights in fp32 or bf16");
  if (control_of(a.control).skip != 0) return;
  for_each_block(pool_, a.average.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) {
    vector_.average(a.weights.dtype, a.weights.data + begin * size_of(a.weights.dtype),
                    a.average.as<float>() + begin, a.decay, end - begin);
  });
}

void CpuBackend::expert_bias_update(Stream&, const ExpertBiasUpdate& a) {
  check_args(a);
  if (control_of(a.control).skip != 0) return;
  const std::span counts(a.count_E.as<float>(), static_cast<std::size_t>(a.count_E.numel()));
  const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
  for (std::size_t e = 0; e < counts.size(); ++e) {
    const double share = counts[e] * static_cast<double>(counts.size());  // the mean's is `all`
    if (share != all) a.bias_E.as<float>()[e] += share < all ? a.rate : -a.rate;
  }
}

void CpuBackend::direction_update(Stream&, const DirectionUpdate& a) {
  check_ranges(a);
  if (control_of(a.control).skip != 0) return;
  for (const UpdateRange& range : a.ranges) {
    for_each_block(pool_, range.count, kBlockElements, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t at = range.begin + begin;
      DirectionRun part{.master_dtype = a.master.dtype,
                        .direction = a.direction.as<float>() + at,
                        .master = a.master.data + at * size_of(a.master.dtype),
                        .count = end - begin,
                        .lr = a.lr,
                        .scale = a.scale,
                        .weight_decay = range.weight_decay};
      if (a.params.defined()) {
        part.param_dtype = a.params.dtype;
        part.params = a.params.data + at * size_of(a.params.dtype);
      }
      if (a.rounding == Rounding::stochastic && a.master.dtype == DType::bf16)
        direction_rounded(vector_, part, range, begin, a.step);
      else vector_.direction(part);
    });
  }
}

}  // namespace trainerd::kernels
