// The optimizer. Floor of an update = bytes / memory bandwidth. Per element the gradient is read, master
// weight and moments are read and written (24 bytes with AdamW's two), and the parameter is written: 28 bytes
// with bf16 gradients and parameters; 14 with the whole state in bf16. Stochastic rounding adds a Philox call
// per four elements (about 20 instructions each), which takes less time than the memory accesses.

#include <cmath>
#include <limits>

#include "kernels/cuda/kernels/flat.cuh"
#include "kernels/cuda/kernels/reduce.cuh"
#include "kernels/cuda/kernels/rounding.cuh"

namespace trainerd::kernels::cuda {
namespace {

constexpr int kUpdateThreads = 256;
/// Elements per vector: 16 bytes of fp32 arrays and 8 of bf16 ones next to them, or 16 bytes of a state that
/// is entirely bf16.
template <class W, class M>
constexpr int kWidth = sizeof(W) + sizeof(M) == 4 ? 8 : 4;
/// elements per block; tiles begin at multiples of it in the flat state
constexpr std::int64_t kTile = 4096;
constexpr int kRangesOfLaunch = 384;  ///< passed as kernel parameters (25 kB; the limit is 32 kB)

struct Ranges {
  int count;
  UpdateRange range[kRangesOfLaunch];
  std::int64_t first_tile[kRangesOfLaunch + 1];  ///< number of blocks before each range
};

struct Update {
  const void* grads;
  void* master;
  void* moment1;
  void* moment2;  ///< null if the rule has none
  void* params;   ///< may be null
  const StepControlValues* control;
  UpdateRule rule;
  bool nesterov;
  float lr, beta1, beta2, eps;
  float correction1, correction2;  ///< 1 / (1 - beta^t), unless the control has them
  bool vectors;
  bool stochastic;
  std::int64_t step;
};

struct Corrections {
  float first, second;
};

/// Updates elements [i, i + N) of the flat arrays, which are in `range`. kSecond: by AdamW, the rule with two
/// moments, whose kernel is so left all registers.
template <class G, class P, class W, class M, bool kSecond, int N>
__device__ inline void update(const Update& a, const Corrections& corrections, const UpdateRange& range,
                              std::int64_t i, float factor) {
  float g[N], w[N], m[N], v[kSecond ? N : 1];
  const float decay = range.weight_decay;
  load<N>(static_cast<const G*>(a.grads) + i, g);
  load<N>(static_cast<const W*>(a.master) + i, w);
  load<N>(static_cast<const M*>(a.moment1) + i, m);
  if constexpr (kSecond) {
    load<N>(static_cast<const M*>(a.moment2) + i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float grad = g[k] * factor;
      m[k] = fmaf(a.beta1, m[k], (1.0f - a.beta1) * grad);
      v[k] = fmaf(a.beta2, v[k], (1.0f - a.beta2) * grad * grad);
      g[k] = m[k] * corrections.first / (sqrtf(v[k] * corrections.second) + a.eps);
    }
  } else if (a.rule == UpdateRule::lion) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float grad = g[k] * factor, mean = fmaf(a.beta1, m[k], (1.0f - a.beta1) * grad);
      m[k] = fmaf(a.beta2, m[k], (1.0f - a.beta2) * grad);
      g[k] = mean > 0.0f ? 1.0f : mean < 0.0f ? -1.0f : 0.0f;
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float grad = g[k] * factor;
      m[k] = fmaf(a.beta1, m[k], grad);
      g[k] = a.nesterov ? fmaf(a.beta1, m[k], grad) : m[k];
    }
  }
  // g is what the weight moves by.
#pragma unroll
  for (int k = 0; k < N; ++k) w[k] = fmaf(-a.lr, fmaf(decay, w[k], g[k]), w[k]);
  if (a.params != nullptr) store<N>(static_cast<P*>(a.params) + i, w);
  if constexpr (sizeof(W) == 2 || sizeof(M) == 2) {
    if (a.stochastic) {
      std::uint32_t words[N];
      draw_words<N>(range, i - range.begin, a.step, words);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        w[k] = rounded_by<W>(w[k], words[k] & 0xffffu);
        if constexpr (kSecond) v[k] = rounded_by<M>(v[k], words[k] >> 16);
        else m[k] = rounded_by<M>(m[k], words[k] >> 16);
      }
    }
  }
  store<N>(static_cast<M*>(a.moment1) + i, m);
  if constexpr (kSecond) store<N>(static_cast<M*>(a.moment2) + i, v);
  store<N>(static_cast<W*>(a.master) + i, w);
}

template <class G, class P, class W, class M, bool kSecond>
__global__ void __launch_bounds__(kUpdateThreads)
    param_update_kernel(Update a, const __grid_constant__ Ranges ranges) {
  if (a.control->skip != 0) return;
  const float factor = a.control->grad_factor;
  const StepControlValues& control = *a.control;
  const Corrections corrections{control.correction1 != 0.0f ? control.correction1 : a.correction1,
                                control.correction2 != 0.0f ? control.correction2 : a.correction2};
  // The last range whose tiles begin at or before this block. This skips empty ranges.
  int low = 0, high = ranges.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (ranges.first_tile[middle] <= blockIdx.x) low = middle;
    else high = middle;
  }
  const UpdateRange& range = ranges.range[low];
  const std::int64_t range_begin = range.begin, range_end = range_begin + range.count;
  constexpr int N = kWidth<W, M>;
  const std::int64_t tile = (range_begin / kTile + (blockIdx.x - ranges.first_tile[low])) * kTile;
  const std::int64_t begin = tile > range_begin ? tile : range_begin,
                     end = tile + kTile < range_end ? tile + kTile : range_end;
  for (std::int64_t i = tile + threadIdx.x * N; i < end; i += kUpdateThreads * N) {
    if (a.vectors && i >= begin && i + N <= end) {
      update<G, P, W, M, kSecond, N>(a, corrections, range, i, factor);
    } else {
      for (std::int64_t k = i; k < i + N; ++k)
        if (k >= begin && k < end) update<G, P, W, M, kSecond, 1>(a, corrections, range, k, factor);
    }
  }
}

/// Loss scaling's part of StepControl; `state` may be null.
struct Scaling {
  const LossScaleState* state;
  double least;
  std::int64_t step;
  float beta1, beta2;
};

__global__ void step_control_kernel(const double* square_sum, const double* loss, const double* weight,
                                    double nominal_weight, const std::int32_t* nonfinite,
                                    const float* outside, const float* crowded, double clip_norm,
                                    Scaling scaling, StepControlValues* values) {
  const auto finite = [](double x) { return fabs(x) <= std::numeric_limits<double>::max(); };
  const double to_mean = *weight > 0 ? nominal_weight / *weight : 1;
  StepControlValues v;
  v.nonfinite = *nonfinite;
  if (scaling.state != nullptr) {
    const LossScaleState state = *scaling.state;
    v.loss_scale = state.value;
    const double t = static_cast<double>(scaling.step - static_cast<std::int64_t>(state.skipped));
    v.correction1 = static_cast<float>(1.0 / (1.0 - pow(static_cast<double>(scaling.beta1), t)));
    v.correction2 = static_cast<float>(1.0 / (1.0 - pow(static_cast<double>(scaling.beta2), t)));
  }
  const double factor = to_mean / static_cast<double>(v.loss_scale);
  const bool lowers = scaling.state != nullptr && static_cast<double>(v.loss_scale) > scaling.least;
  v.grad_norm = sqrt(*square_sum) * factor;
  if (outside != nullptr && *outside != 0.0f) v.skip = StepControlValues::kSkipOutside;
  else if (!finite(*loss) || (!finite(*square_sum) && !lowers)) v.skip = StepControlValues::kSkipNonfinite;
  else if (crowded != nullptr && *crowded != 0.0f) v.skip = StepControlValues::kSkipCrowded;
  else if (!finite(*square_sum)) v.skip = StepControlValues::kSkipOverflow;
  else if (*weight == 0) v.skip = StepControlValues::kSkipEmpty;
  else
    v.grad_factor = static_cast<float>(
        clip_norm > 0 && v.grad_norm > clip_norm ? clip_norm / v.grad_norm * factor : factor);
  *values = v;
}

__global__ void loss_scale_kernel(LossScaleUpdate a) {
  auto* state = reinterpret_cast<LossScaleState*>(a.state.data);
  *state = updated(*state, a, reinterpret_cast<const StepControlValues*>(a.control.data)->skip);
}

template <class W>
struct AverageBody {
  const W* weights;
  float* average;
  const StepControlValues* control;
  float decay;
  template <int N>
  __device__ void at(std::int64_t i) const {
    if (control->skip != 0) return;
    float w[N], kept[N];
    load<N>(weights + i, w);
    load<N>(average + i, kept);
#pragma unroll
    for (int k = 0; k < N; ++k) kept[k] = fmaf(decay, kept[k], (1.0f - decay) * w[k]);
    store<N>(average + i, kept);
  }
};

/// One warp.
__global__ void __launch_bounds__(32)
    expert_bias_kernel(const float* counts, const StepControlValues* control, int experts, float rate,
                       float* biases) {
  if (control->skip != 0) return;
  double all = 0;
  for (int e = lane_id(); e < experts; e += 32) all += counts[e];
  all = warp_reduce(all, Plus{});
  for (int e = lane_id(); e < experts; e += 32) {
    const double share = static_cast<double>(counts[e]) * experts;  // the mean's is `all`
    if (share != all) biases[e] += share < all ? rate : -rate;
  }
}

}  // namespace

void expert_bias_update(const Launch& where, const ExpertBiasUpdate& a) {
  check_args(a);
  launch(where, {1}, 32, "expert_bias_update", expert_bias_kernel, at<float>(a.count_E),
         reinterpret_cast<const StepControlValues*>(a.control.data), static_cast<int>(a.bias_E.numel()),
         a.rate, at<float>(a.bias_E));
}

void average_update(const Launch& where, const AverageUpdate& a) {
  base::check(a.control.bytes() == sizeof(StepControlValues),
              "average: the control is one StepControlValues");
  base::check(a.average.dtype == DType::f32 && a.weights.numel() == a.average.numel(),
              "average: fp32 of as many weights");
  with_state_type(a.weights.dtype, "average: of fp32 or bf16 weights", [&](auto w) {
    using W = decltype(w);
    launch_flat<4>(where, a.average.numel(), aligned(a.weights, a.average), "average_update",
                   AverageBody<W>{at<W>(a.weights), at<float>(a.average),
                                  reinterpret_cast<const StepControlValues*>(a.control.data), a.decay});
  });
}

void step_control(const Launch& where, const StepControl& a) {
  base::check(a.values.bytes() == sizeof(StepControlValues),
              "step control: the output is one StepControlValues");
  launch(where, {1}, 1, "step_control", step_control_kernel, a.square_sum.as<double>(), a.loss.as<double>(),
         a.weight.as<double>(), a.nominal_weight, a.nonfinite.as<std::int32_t>(), at<float>(a.outside),
         at<float>(a.crowded), a.clip_norm,
         Scaling{at<const LossScaleState>(a.loss_scale), a.min_loss_scale, a.step, a.beta1, a.beta2},
         reinterpret_cast<StepControlValues*>(a.values.data));
}

void loss_scale_update(const Launch& where, const LossScaleUpdate& a) {
  check_args(a);
  launch(where, {1}, 1, "loss_scale_update", loss_scale_kernel, a);
}

void param_update(const Launch& where, const ParamUpdate& a) {
  base::check(a.control.bytes() == sizeof(StepControlValues), "update: the control is one StepControlValues");
  check_ranges(a);

  const Update args{.grads = a.grads.data,
                    .master = a.master.data,
                    .moment1 = a.moment1.data,
                    .moment2 = at<void>(a.moment2),
                    .params = at<void>(a.params),
                    .control = reinterpret_cast<const StepControlValues*>(a.control.data),
                    .rule = a.rule,
                    .nesterov = a.nesterov,
                    .lr = a.lr,
                    .beta1 = a.beta1,
                    .beta2 = a.beta2,
                    .eps = a.eps,
                    .correction1 = adam_correction(a.beta1, a.step),
                    .correction2 = adam_correction(a.beta2, a.step),
                    .vectors = aligned(a.grads, a.master, a.moment1, a.moment2, a.params),
                    .stochastic = a.rounding == Rounding::stochastic,
                    .step = a.step};
  for (std::size_t first = 0; first < a.ranges.size(); first += kRangesOfLaunch) {
    Ranges ranges{};
    for (std::size_t i = first; i < a.ranges.size() && ranges.count < kRangesOfLaunch; ++i, ++ranges.count) {
      const UpdateRange& range = a.ranges[i];
      const std::int64_t tiles =
          range.count == 0 ? 0 : ceil_div(range.begin + range.count, kTile) - range.begin / kTile;
      ranges.range[ranges.count] = range;
      ranges.first_tile[ranges.count + 1] = ranges.first_tile[ranges.count] + tiles;
    }
    const auto launch_as = [&](auto g, auto p, auto w, auto m) {
      using G = decltype(g);
      using P = decltype(p);
      using W = decltype(w);
      using M = decltype(m);
      launch(where, {ranges.first_tile[ranges.count]}, kUpdateThreads, "param_update",
             has_second_moment(a.rule) ? param_update_kernel<G, P, W, M, true>
                                       : param_update_kernel<G, P, W, M, false>,
             args, ranges);
    };
    with_state_type(a.moment1.dtype, "update: fp32 or bf16 moments", [&](auto m) {
      // Gradients of fp16 parameters are fp32.
      if (a.params.defined() && a.params.dtype == DType::f16) return launch_as(float{}, Fp16{}, float{}, m);
      with_state_type(a.grads.dtype, "update: fp32 or bf16 gradients", [&](auto g) {
        if (a.master.dtype == DType::bf16) return launch_as(g, Bf16{}, Bf16{}, m);
        with_state_type(a.params.dtype, "update: fp32, bf16 or fp16 parameters",
                        [&](auto p) { launch_as(g, p, float{}, m); });
      });
    });
  }
}

}  // namespace trainerd::kernels::cuda
