// Routing of tokens to experts, and the moves of their rows. Routing reads the logits and writes the
// probabilities once, with a warp per token; the moves read and write each row once: floor = bytes / memory
// bandwidth. Sorting is that of token_sort.cu.

#include <cfloat>

#include "kernels/cuda/kernels/flat.cuh"
#include "kernels/cuda/kernels/reduce.cuh"
#include "kernels/cuda/kernels/token_sort.cuh"

namespace trainerd::kernels::cuda {
namespace {

constexpr int kWarpsOfBlock = 8;
constexpr int kExpertThreads = 32 * kWarpsOfBlock;

/// The warp's token or row.
__device__ inline std::int64_t item_of_warp() {
  return static_cast<std::int64_t>(blockIdx.x) * kWarpsOfBlock + warp_id();
}

/// A value with its expert.
struct Candidate {
  float value;
  std::int32_t expert;
  __device__ void take_better(float other, std::int32_t index) {
    if (other > value || (other == value && index < expert)) value = other, expert = index;
  }
};

/// The largest of the warp's candidates; of equal ones the one of the first expert.
__device__ inline Candidate best_of_warp(Candidate best) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const float value = __shfl_xor_sync(kFullWarp, best.value, offset);
    const std::int32_t expert = __shfl_xor_sync(kFullWarp, best.expert, offset);
    best.take_better(value, expert);
  }
  return best;
}

/// The best of the warp's values x of experts in [begin, end); lane l has experts l, l + 32, ...
template <int E>
__device__ inline Candidate best_in(const float (&x)[E], int begin, int end) {
  Candidate best{-INFINITY, end};
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const int e = i * 32 + lane_id();
    if (e >= begin && e < end) best.take_better(x[i], e);
  }
  return best_of_warp(best);
}

/// Number of groups, of groups per token, and of a group's best experts whose sum is its value.
struct ExpertGroups {
  int count, top, ranked;
};

/// Sets the values of the experts of all but the best groups to -infinity. Lane g has the value of group g.
template <int E>
__device__ inline void leave_best_groups(float (&x)[E], int experts, const ExpertGroups& groups) {
  const int each = experts / groups.count;
  float value = -INFINITY;
  for (int g = 0; g < groups.count; ++g) {
    float rest[E], sum = 0;
#pragma unroll
    for (int i = 0; i < E; ++i) rest[i] = x[i];
    for (int k = 0; k < groups.ranked; ++k) {
      const Candidate best = best_in(rest, g * each, (g + 1) * each);
      sum += best.value;
#pragma unroll
      for (int i = 0; i < E; ++i)
        if (i * 32 + lane_id() == best.expert) rest[i] = -INFINITY;
    }
    if (lane_id() == g) value = sum > -FLT_MAX ? sum : -FLT_MAX;
  }
  std::uint32_t kept = 0;
  for (int k = 0; k < groups.top; ++k) {
    const Candidate best = best_of_warp({value, lane_id()});
    kept |= 1u << best.expert;
    if (lane_id() == best.expert) value = -INFINITY;
  }
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const int e = i * 32 + lane_id();
    if (e < experts && (kept >> (e / each) & 1u) == 0) x[i] = -INFINITY;
  }
}

/// Lane l has experts l, l + 32, ...: E of them at most.
template <class T, int E>
__global__ void __launch_bounds__(kExpertThreads)
    route_forward_kernel(const T* logits, const std::int32_t* real, std::int64_t tokens, int experts,
                         int copies, bool sigmoid, const float* biases, ExpertGroups groups, bool normalise,
                         float scale, float* probs, std::int32_t* chosen, float* weights) {
  const std::int64_t t = item_of_warp();
  if (t >= tokens) return;
  float x[E], largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const int e = i * 32 + lane_id();
    x[i] = e < experts ? widen(logits[t * experts + e]) : -INFINITY;
    largest = fmaxf(largest, x[i]);
  }
  // Sigmoids: 1 / (1 + exp(-x)).
  largest = sigmoid ? 0.0f : warp_reduce(largest, Max{});
  float total = 0;
#pragma unroll
  for (int i = 0; i < E; ++i) total += x[i] = expf(sigmoid ? -x[i] : x[i] - largest);
  total = sigmoid ? 1.0f : warp_reduce(total, Plus{});
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const int e = i * 32 + lane_id();
    x[i] = sigmoid ? 1 / (1 + x[i]) : x[i] / total;
    if (e < experts) probs[t * experts + e] = x[i];
    if (e < experts && biases != nullptr) x[i] += biases[e];
    // A token whose logits are not numbers must still have experts, each once.
    x[i] = e >= experts ? -INFINITY : x[i] > -FLT_MAX ? x[i] : -FLT_MAX;
  }
  __syncwarp();
  if (real != nullptr && real[t] == 0) {
    for (int k = lane_id(); k < copies; k += 32) chosen[t * copies + k] = -1, weights[t * copies + k] = 0.0f;
    return;
  }
  if (groups.count > 1) leave_best_groups(x, experts, groups);
  float share = 0;
  for (int k = 0; k < copies; ++k) {
    const Candidate best = best_in(x, 0, experts);
    const float score = probs[t * experts + best.expert];
    share += score;
#pragma unroll
    for (int i = 0; i < E; ++i)
      if (i * 32 + lane_id() == best.expert) x[i] = -INFINITY;
    if (k % 32 == lane_id()) {  // which divides it by their sum below
      chosen[t * copies + k] = best.expert;
      weights[t * copies + k] = score;
    }
  }
  for (int k = lane_id(); k < copies; k += 32)
    weights[t * copies + k] = weights[t * copies + k] / (normalise ? share : 1.0f) * scale;
}

template <class T, int E>
__global__ void __launch_bounds__(kExpertThreads)
    route_backward_kernel(const float* probs, const std::int32_t* chosen, const float* dweights,
                          std::int64_t tokens, int experts, int copies, bool sigmoid, bool normalise,
                          float scale, float balance, const float* loss_scale, const float* counts,
                          const float* loss_weights, std::int64_t first, std::int64_t run,
                          std::int64_t sequences, T* dlogits, float* losses) {
  const std::int64_t t = item_of_warp();
  if (t >= tokens) return;
  if (chosen[t * copies] < 0) {  // padding
    if (losses != nullptr && lane_id() == 0) losses[t] = 0;
    for (int e = lane_id(); e < experts; e += 32) dlogits[t * experts + e] = narrow<T>(0.0f);
    return;
  }
  float p[E], d[E], factor = 0;
  const float* count = counts == nullptr ? nullptr : counts + (first + t) / run % sequences * experts;
  if (count != nullptr) {
    float total = 0;
    for (int e = lane_id(); e < experts; e += 32) total += count[e];
    factor = balance * loss_weights[t] / warp_reduce(total, Plus{});
  }
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const int e = i * 32 + lane_id();
    p[i] = e < experts ? probs[t * experts + e] : 0.0f;
    d[i] = count != nullptr && e < experts ? factor * count[e] : 0.0f;
  }
  if (count != nullptr) {
    float loss = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < E; ++i) loss = fmaf(d[i], p[i], loss), sum += p[i];
    loss = warp_reduce(loss, Plus{});
    if (sigmoid) {  // these count by their shares
      sum = warp_reduce(sum, Plus{});
      loss /= sum;
#pragma unroll
      for (int i = 0; i < E; ++i) d[i] = (d[i] - loss) / sum;
    }
    if (losses != nullptr && lane_id() == 0) losses[t] = loss;
    if (loss_scale != nullptr) {
#pragma unroll
      for (int i = 0; i < E; ++i) d[i] *= *loss_scale;
    }
  }
  float share = normalise ? 0.0f : 1.0f, mean = 0;
  if (normalise) {
    for (int k = 0; k < copies; ++k) share += probs[t * experts + chosen[t * copies + k]];
    for (int k = 0; k < copies; ++k)
      mean += dweights[t * copies + k] * (probs[t * experts + chosen[t * copies + k]] / share);
  }
  for (int k = 0; k < copies; ++k) {
    const int e = chosen[t * copies + k];
    const float dprob = scale * (dweights[t * copies + k] - mean) / share;
#pragma unroll
    for (int i = 0; i < E; ++i)
      if (i * 32 + lane_id() == e) d[i] += dprob;
  }
  float inner = 0;
#pragma unroll
  for (int i = 0; i < E; ++i) inner = fmaf(d[i], p[i], inner);
  inner = warp_reduce(inner, Plus{});
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const int e = i * 32 + lane_id();
    const float dlogit = sigmoid ? p[i] * (1 - p[i]) * d[i] : p[i] * (d[i] - inner);
    if (e < experts) dlogits[t * experts + e] = narrow<T>(dlogit);
  }
}

/// One block for each (sequence, expert).
__global__ void __launch_bounds__(kExpertThreads)
    count_experts_kernel(const std::int32_t* chosen, std::int64_t first, std::int64_t tokens,
                         std::int64_t sequences, std::int64_t chunks, std::int64_t run, int copies,
                         int experts, bool add, float* counts) {
  const std::int64_t sequence = static_cast<std::int64_t>(blockIdx.x) / experts;
  const auto expert = static_cast<std::int32_t>(static_cast<std::int64_t>(blockIdx.x) % experts);
  std::int32_t count = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t run_begin = (chunk * sequences + sequence) * run - first,
                       begin = run_begin > 0 ? run_begin : 0,
                       end = run_begin + run < tokens ? run_begin + run : tokens;
    for (std::int64_t i = begin * copies + threadIdx.x; i < end * copies; i += kExpertThreads)
      count += chosen[i] == expert ? 1 : 0;
  }
  count = block_sum(count);
  if (threadIdx.x == 0) counts[blockIdx.x] = (add ? counts[blockIdx.x] : 0.0f) + static_cast<float>(count);
}

/// From the sorted experts and copies: the first row of each expert, the copy of each row and the row of each
/// copy. Copies of other ranks' experts, and of padding, are behind all others, with expert `experts`.
__global__ void __launch_bounds__(kExpertThreads)
    place_rows_kernel(const std::int32_t* experts_C, const std::int32_t* copies_C, std::int64_t copies,
                      std::int32_t experts, std::int32_t rows, std::int32_t* first, std::int32_t* source,
                      std::int32_t* row_of, float* flag, float flag_value) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kExpertThreads + threadIdx.x;
  if (i >= copies) return;
  const auto place = static_cast<std::int32_t>(i);
  const std::int32_t mine = experts_C[i], before = i == 0 ? -1 : experts_C[i - 1];
  for (std::int32_t e = before + 1; e <= mine; ++e) first[e] = place < rows ? place : rows;
  for (std::int32_t e = mine + 1; i + 1 == copies && e <= experts; ++e)
    first[e] = copies < rows ? static_cast<std::int32_t>(copies) : rows;
  const bool has_row = mine < experts && place < rows;
  if (place < rows) source[place] = has_row ? copies_C[i] : -1;
  row_of[copies_C[i]] = has_row ? place : -1;
  if (mine < experts && place == rows) *flag = flag_value;
}

template <class T>
struct GatherRowsBody {
  const T* from;
  const std::int32_t* source;
  T* to;
  std::int64_t columns, copies;
  template <int N>
  __device__ void at(std::int64_t i) const {
    float v[N];
    const std::int32_t copy = source[i / columns];
    if (copy < 0) return;
    load<N>(from + copy / copies * columns + i % columns, v);
    store<N>(to + i, v);
  }
};

template <class T>
struct CombineRowsBody {
  const T* from;
  const std::int32_t* rows;
  const float* weights;
  T* to;
  std::int64_t columns, copies;
  template <int N>
  __device__ void at(std::int64_t i) const {
    const std::int64_t t = i / columns, column = i % columns;
    float total[N] = {}, v[N];
    for (std::int64_t k = t * copies; k < (t + 1) * copies; ++k) {
      if (rows[k] < 0) continue;
      load<N>(from + rows[k] * columns + column, v);
      const float weight = weights == nullptr ? 1.0f : weights[k];
#pragma unroll
      for (int n = 0; n < N; ++n) total[n] = fmaf(weight, v[n], total[n]);
    }
    store<N>(to + i, total);
  }
};

template <class T, int N>
__global__ void __launch_bounds__(kExpertThreads)
    weigh_rows_kernel(const std::int32_t* source, const float* weights, std::int64_t rows,
                      std::int64_t columns, T* dact, T* act, float* dweights) {
  const std::int64_t r = item_of_warp();
  if (r >= rows || source[r] < 0) return;
  const float weight = weights[source[r]];
  float sum = 0;
  for (std::int64_t c = lane_id() * N; c < columns; c += 32 * N) {
    float d[N], x[N];
    load<N>(dact + r * columns + c, d);
    load<N>(act + r * columns + c, x);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      sum = fmaf(d[n], x[n], sum);
      d[n] *= weight;
      x[n] *= weight;
    }
    store<N>(dact + r * columns + c, d);
    store<N>(act + r * columns + c, x);
  }
  sum = warp_reduce(sum, Plus{});
  if (lane_id() == 0) dweights[source[r]] = sum;
}

/// Calls `f` with the experts of a lane.
template <class F>
void with_experts(std::int64_t experts, const F& f) {
  if (experts <= 32) f(std::integral_constant<int, 1>{});
  else if (experts <= 128) f(std::integral_constant<int, 4>{});
  else f(std::integral_constant<int, static_cast<int>(kMostExperts / 32)>{});
}

}  // namespace

void route_forward(const Launch& where, const RouteForward& a) {
  check_args(a);
  const std::int64_t tokens = a.logits_TE.size(0), experts = a.logits_TE.size(1);
  with_type(a.logits_TE.dtype, "route: fp32, bf16 or fp16", [&](auto t) {
    with_experts(experts, [&](auto of_lane) {
      using T = decltype(t);
      launch(where, {ceil_div(tokens, kWarpsOfBlock)}, kExpertThreads, "route_forward",
             route_forward_kernel<T, decltype(of_lane)::value>, at<T>(a.logits_TE),
             at<std::int32_t>(a.real_T), tokens, static_cast<int>(experts),
             static_cast<int>(a.expert_TK.size(1)), a.score == RouterScore::sigmoid, at<float>(a.bias_E),
             ExpertGroups{static_cast<int>(a.groups), static_cast<int>(a.top_groups),
                          static_cast<int>(experts_to_rank(a.score))},
             a.normalise, a.factor, at<float>(a.probs_TE), at<std::int32_t>(a.expert_TK),
             at<float>(a.weight_TK));
    });
  });
}

void route_backward(const Launch& where, const RouteBackward& a) {
  check_args(a);
  const std::int64_t tokens = a.probs_TE.size(0), experts = a.probs_TE.size(1),
                     sequences = a.count_BE.defined() ? a.count_BE.size(0) : 1;
  with_type(a.dlogits_TE.dtype, "route: fp32, bf16 or fp16", [&](auto t) {
    with_experts(experts, [&](auto of_lane) {
      using T = decltype(t);
      launch(where, {ceil_div(tokens, kWarpsOfBlock)}, kExpertThreads, "route_backward",
             route_backward_kernel<T, decltype(of_lane)::value>, at<float>(a.probs_TE),
             at<std::int32_t>(a.expert_TK), at<float>(a.dweight_TK), tokens, static_cast<int>(experts),
             static_cast<int>(a.expert_TK.size(1)), a.score == RouterScore::sigmoid, a.normalise, a.factor,
             a.balance, at<float>(a.loss_scale), at<float>(a.count_BE), at<float>(a.loss_weight_T),
             a.range.first, a.range.tokens(tokens) / (a.range.chunks * sequences), sequences,
             at<T>(a.dlogits_TE), at<float>(a.loss_T));
    });
  });
}

void count_experts(const Launch& where, const CountExperts& a) {
  check_args(a);
  const std::int64_t sequences = a.count_BE.size(0), tokens = a.expert_TK.size(0);
  launch(where, {sequences * a.count_BE.size(1)}, kExpertThreads, "count_experts", count_experts_kernel,
         at<std::int32_t>(a.expert_TK), a.range.first, tokens, sequences, a.range.chunks,
         a.range.tokens(tokens) / (a.range.chunks * sequences), static_cast<int>(a.expert_TK.size(1)),
         static_cast<int>(a.count_BE.size(1)), a.mode == WriteMode::accumulate, at<float>(a.count_BE));
}

void sort_experts(const Launch& where, const SortExperts& a) {
  check_args(a);
  const std::int64_t copies = a.expert_TK.numel(), experts = a.first_E.numel() - 1;
  const SortedTokens sorted =
      sort_tokens(where, at<std::int32_t>(a.expert_TK), a.first_expert, experts, SortLayout(copies, experts));
  launch(where, {ceil_div(copies, kExpertThreads)}, kExpertThreads, "place_rows", place_rows_kernel,
         sorted.rows, sorted.tokens, copies, static_cast<std::int32_t>(experts),
         static_cast<std::int32_t>(a.source_R.numel()), at<std::int32_t>(a.first_E),
         at<std::int32_t>(a.source_R), at<std::int32_t>(a.row_TK), at<float>(a.flag), a.flag_value);
}

void gather_rows(const Launch& where, const GatherRows& a) {
  check_args(a);
  with_type(a.to_RD.dtype, "gather_rows: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    const std::int64_t columns = a.to_RD.size(1);
    launch_flat<kVec<T>>(
        where, a.to_RD.numel(), aligned(a.from_TD, a.to_RD) && columns % kVec<T> == 0, "gather_rows",
        GatherRowsBody<T>{at<T>(a.from_TD), at<std::int32_t>(a.source_R), at<T>(a.to_RD), columns, a.copies});
  });
}

void combine_rows(const Launch& where, const CombineRows& a) {
  check_args(a);
  with_type(a.to_TD.dtype, "combine_rows: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    const std::int64_t columns = a.to_TD.size(1);
    launch_flat<kVec<T>>(
        where, a.to_TD.numel(), aligned(a.from_RD, a.to_TD) && columns % kVec<T> == 0, "combine_rows",
        CombineRowsBody<T>{at<T>(a.from_RD), at<std::int32_t>(a.row_TK), at<float>(a.weight_TK),
                           at<T>(a.to_TD), columns, a.row_TK.size(1)});
  });
}

void weigh_rows(const Launch& where, const WeighRows& a) {
  check_args(a);
  const std::int64_t rows = a.act_RF.size(0), columns = a.act_RF.size(1);
  with_type(a.act_RF.dtype, "weigh_rows: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    const bool vectors = aligned(a.dact_RF, a.act_RF) && columns % kVec<T> == 0;
    launch(where, {ceil_div(rows, kWarpsOfBlock)}, kExpertThreads, "weigh_rows",
           vectors ? weigh_rows_kernel<T, kVec<T>> : weigh_rows_kernel<T, 1>, at<std::int32_t>(a.source_R),
           at<float>(a.weight_TK), rows, columns, at<T>(a.dact_RF), at<T>(a.act_RF), at<float>(a.dweight_TK));
  });
}

}  // namespace trainerd::kernels::cuda
