// Rotation of query and key heads, after an optional RMS norm of each. Floor = bytes / memory bandwidth, in
// elements of qkv per token. Forward: 2 (H + 2 K) E, or 2 (H + K) E in place. Backward: 2 (H + K) E, and (H +
// K) E more with norms.

#include <algorithm>
#include <cmath>

#include "kernels/cuda/kernels/rope.cuh"

namespace trainerd::kernels::cuda {
namespace {

/// One block per token.
template <class T, int N, int V>
__global__ void __launch_bounds__(kRopeThreads) qk_norm_rope_forward_kernel(RopeForward<T> a) {
  const HeadLanes<N, V> at(a.head_size, a.rotated, a.lanes);
  const std::int64_t token = blockIdx.x, row = token * (a.heads + 2 * a.kv_heads) * a.head_size;
  float cosine[V][N], sine[V][N];
  const std::int64_t position = a.table != nullptr ? a.positions[token] : 0;
  const std::int64_t rotated = a.heads + a.kv_heads, all = a.in == a.out ? rotated : rotated + a.kv_heads;
  // All groups make the same number of rounds, because the sums need whole warps.
  for (std::int64_t first = 0; first < all; first += at.groups) {
    const std::int64_t head = first + at.group;
    typename HeadLanes<N, V>::template RawHead<T> raw;
    if (head < all) raw = at.fetch_head(a.in + row + head * a.head_size);
    // After the head's loads: the angles wait for the position.
    if (first == 0 && a.table != nullptr) at.load_angles(a.table + position * a.rotated, cosine, sine);
    float low[V][N], high[V][N];
    at.unpack_head(raw, low, high);
    if (a.q_weight != nullptr) {
      const float squares = at.group_sum(head < all ? square_sum(low, high) : 0.0f);
      if (head < rotated) {
        const float rstd = rsqrtf(fmaf(squares, a.inverse_size, a.eps));
        float w_low[V][N], w_high[V][N];
        at.load_head(head < a.heads ? a.q_weight : a.k_weight, w_low, w_high);
#pragma unroll
        for (int v = 0; v < V; ++v)
#pragma unroll
          for (int k = 0; k < N; ++k) {
            low[v][k] = low[v][k] * rstd * (w_low[v][k] + a.weight_offset);
            high[v][k] = high[v][k] * rstd * (w_high[v][k] + a.weight_offset);
          }
      }
    }
    if (head >= all) continue;
    if (a.table != nullptr && head < rotated) {
#pragma unroll
      for (int v = 0; v < V; ++v)
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float x = low[v][k], y = high[v][k], c = cosine[v][k], s = sine[v][k];
          low[v][k] = fmaf(-y, s, x * c);
          high[v][k] = fmaf(y, c, x * s);
        }
    }
    at.store_head(a.out + row + head * a.head_size, low, high);
  }
}

/// Adds the groups' sums of one weight's gradient in the order of the warps, and writes them as the block's
/// part.
template <int N, int V>
__device__ inline void write_part(const HeadLanes<N, V>& at, float (&low)[V][N], float (&high)[V][N],
                                  float* part) {
  __shared__ float sums[kLargestCudaHead];
#pragma unroll
  for (int v = 0; v < V; ++v)
#pragma unroll
    for (int k = 0; k < N; ++k)
      for (int offset = at.lanes; offset < 32; offset *= 2) {
        low[v][k] += __shfl_xor_sync(kFullWarp, low[v][k], offset);
        high[v][k] += __shfl_xor_sync(kFullWarp, high[v][k], offset);
      }
  for (int warp = 0; warp < warps_of_block(); ++warp) {
    __syncthreads();  // wait for the previous warp, and for readers of another weight's sums
    if (warp != warp_id() || lane_id() >= at.lanes) continue;
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const int to_low = at.low_place(v) + k, to_high = at.high_place(v) + k;
        if (at.has_low(v)) sums[to_low] = (warp == 0 ? 0.0f : sums[to_low]) + low[v][k];
        if (at.has_high(v)) sums[to_high] = (warp == 0 ? 0.0f : sums[to_high]) + high[v][k];
      }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < at.size; i += static_cast<int>(blockDim.x))
    part[i] = sums[i];
}

/// g = dy rotated back; with a norm dx = rstd (g w - x rstd^2 mean(g w x)) and dweight += g x rstd. In place.
/// A block processes the tokens of its part: one token without a norm.
template <class T, int N, int V, bool kNorm>
__global__ void __launch_bounds__(kRopeThreads) qk_norm_rope_backward_kernel(RopeBackward<T> a) {
  const HeadLanes<N, V> at(a.head_size, a.rotated, a.lanes);
  const std::int64_t columns = (a.heads + 2 * a.kv_heads) * a.head_size, rotated = a.heads + a.kv_heads;
  const std::int64_t begin = blockIdx.x * a.tokens_of_part,
                     end = begin + a.tokens_of_part < a.tokens ? begin + a.tokens_of_part : a.tokens;
  float dq_low[kNorm ? V : 1][N] = {}, dq_high[kNorm ? V : 1][N] = {}, dk_low[kNorm ? V : 1][N] = {},
                           dk_high[kNorm ? V : 1][N] = {};
  for (std::int64_t token = begin; token < end; ++token) {
    float cosine[V][N], sine[V][N];
    const std::int64_t position = a.table != nullptr ? a.positions[token] : 0;
    for (std::int64_t first = 0; first < rotated; first += at.groups) {
      const std::int64_t head = first + at.group, place = token * columns + head * a.head_size;
      const bool on = head < rotated;
      typename HeadLanes<N, V>::template RawHead<T> raw;
      if (on) raw = at.fetch_head(a.dqkv + place);
      if (first == 0 && a.table != nullptr) at.load_angles(a.table + position * a.rotated, cosine, sine);
      float low[V][N], high[V][N];
      at.unpack_head(raw, low, high);
      if (a.table != nullptr) {
#pragma unroll
        for (int v = 0; v < V; ++v)
#pragma unroll
          for (int k = 0; k < N; ++k) {
            const float x = low[v][k], y = high[v][k], c = cosine[v][k], s = sine[v][k];
            low[v][k] = fmaf(y, s, x * c);
            high[v][k] = fmaf(-x, s, y * c);
          }
      }
      if constexpr (kNorm) {
        float x_low[V][N] = {}, x_high[V][N] = {}, w_low[V][N] = {}, w_high[V][N] = {};
        const bool query = head < a.heads;
        if (on) {
          at.load_head(a.in + place, x_low, x_high);
          at.load_head(query ? a.q_weight : a.k_weight, w_low, w_high);
#pragma unroll
          for (int v = 0; v < V; ++v)
#pragma unroll
            for (int k = 0; k < N; ++k) w_low[v][k] += a.weight_offset, w_high[v][k] += a.weight_offset;
        }
        const float squares = at.group_sum(square_sum(x_low, x_high));
        float products = 0.0f;
#pragma unroll
        for (int v = 0; v < V; ++v)
#pragma unroll
          for (int k = 0; k < N; ++k)
            products = fmaf(low[v][k] * w_low[v][k], x_low[v][k],
                            fmaf(high[v][k] * w_high[v][k], x_high[v][k], products));
        products = at.group_sum(products);
        const float rstd = rsqrtf(fmaf(squares, a.inverse_size, a.eps)),
                    mean = products * a.inverse_size * rstd * rstd;
        const float to_q = on && query ? 1.0f : 0.0f, to_k = on && !query ? 1.0f : 0.0f;
#pragma unroll
        for (int v = 0; v < V; ++v)
#pragma unroll
          for (int k = 0; k < N; ++k) {
            const float weight_low = low[v][k] * x_low[v][k] * rstd,
                        weight_high = high[v][k] * x_high[v][k] * rstd;
            dq_low[v][k] += to_q != 0.0f ? weight_low : 0.0f;
            dq_high[v][k] += to_q != 0.0f ? weight_high : 0.0f;
            dk_low[v][k] += to_k != 0.0f ? weight_low : 0.0f;
            dk_high[v][k] += to_k != 0.0f ? weight_high : 0.0f;
            low[v][k] = fmaf(-x_low[v][k], mean, low[v][k] * w_low[v][k]) * rstd;
            high[v][k] = fmaf(-x_high[v][k], mean, high[v][k] * w_high[v][k]) * rstd;
          }
      }
      if (on) at.store_head(a.dqkv + place, low, high);
    }
  }
  if constexpr (kNorm) {
    write_part(at, dq_low, dq_high, a.q_partial + blockIdx.x * a.stride);
    write_part(at, dk_low, dk_high, a.k_partial + blockIdx.x * a.stride);
  }
}

/// Passed by value as a kernel argument: at most 1 KiB.
struct Frequencies {
  double of_pair[kLargestCudaHead / 2];
};

__global__ void rope_table_kernel(float* table, std::int64_t positions, std::int64_t size,
                                  Frequencies frequencies, double factor) {
  const std::int64_t half = size / 2, i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= positions * half) return;
  const std::int64_t position = i / half, pair = i % half;
  const double angle = static_cast<double>(position) * frequencies.of_pair[pair];
  table[position * size + pair] = static_cast<float>(factor * cos(angle));
  table[position * size + half + pair] = static_cast<float>(factor * sin(angle));
}

void check_heads(const HeadGeometry& heads, const Tensor& qkv, const Tensor& positions_T,
                 const Tensor& rope_table_SR, QkNormSpan span, const Tensor& q_weight_E,
                 const Tensor& k_weight_E) {
  base::check(heads.head_size > 0 && heads.head_size <= kLargestCudaHead,
              "qk norm: a head is larger than kLargestCudaHead");
  base::check(qkv.size(-1) == heads.columns() && heads.values_size() == heads.head_size,
              "qk norm: columns of qkv against the head geometry");
  base::check(rotated_elements(rope_table_SR, heads) == 0 ||
                  (positions_T.dtype == DType::i32 && positions_T.numel() == qkv.size(0)),
              "rope: each token has a position");
  base::check(q_weight_E.defined() == k_weight_E.defined() &&
                  (!q_weight_E.defined() ||
                   (q_weight_E.dtype == k_weight_E.dtype &&
                    q_weight_E.numel() == norm_elements(span, heads.heads, heads.head_size) &&
                    k_weight_E.numel() == norm_elements(span, heads.kv_heads, heads.head_size))),
              "qk norm: both weights or none, of one dtype and as long as what they norm");
  if (q_weight_E.defined()) check_weights(qkv.dtype, q_weight_E.dtype);
}

}  // namespace

void rope_table(const Launch& where, const RopeTable& a) {
  const std::int64_t positions = a.table_SR.size(0), e = a.table_SR.size(1);
  base::check(e <= kLargestCudaHead && 2 * a.frequencies.size() == static_cast<std::size_t>(e),
              "rope: a frequency for each pair that is rotated, of a head no larger than kLargestCudaHead");
  Frequencies frequencies{};
  std::copy(a.frequencies.begin(), a.frequencies.end(), frequencies.of_pair);
  launch(where, {ceil_div(positions * (e / 2), 128)}, 128, "rope_table", rope_table_kernel,
         a.table_SR.as<float>(), positions, e, frequencies, a.factor);
}

void qk_norm_rope_forward(const Launch& where, const QkNormRopeForward& a) {
  check_heads(a.heads, a.qkv_in, a.positions_T, a.rope_table_SR, a.span, a.q_weight_E, a.k_weight_E);
  base::check(a.qkv_out.dtype == a.qkv_in.dtype && a.qkv_out.numel() == a.qkv_in.numel(),
              "qk norm: out must be as in");
  const bool in_place = a.qkv_in.data == a.qkv_out.data;
  if (in_place && !a.rope_table_SR.defined() && !a.q_weight_E.defined()) return;
  if (a.q_weight_E.defined() && a.span == QkNormSpan::all) return wide_qk_norm_rope_forward(where, a);
  const std::int64_t heads = a.heads.heads + (in_place ? 1 : 2) * a.heads.kv_heads;
  const std::int64_t rotated = rotated_elements(a.rope_table_SR, a.heads);
  const bool vectors = aligned(a.qkv_in, a.qkv_out, a.rope_table_SR, a.q_weight_E, a.k_weight_E);
  with_type(a.qkv_in.dtype, "qk norm: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    with_head_shape<T>(vectors, a.heads.head_size, rotated, [&](auto n, auto v, int lanes) {
      launch(where, {a.qkv_in.size(0)}, threads_for(heads * lanes, kRopeThreads), "qk_norm_rope_forward",
             qk_norm_rope_forward_kernel<T, decltype(n)::value, decltype(v)::value>,
             rope_forward_args<T>(a, lanes));
    });
  });
}

void qk_norm_rope_backward(const Launch& where, const QkNormRopeBackward& a) {
  check_heads(a.heads, a.dqkv, a.positions_T, a.rope_table_SR, a.span, a.q_weight_E, a.k_weight_E);
  const bool norm = a.q_weight_E.defined();
  if (!norm && !a.rope_table_SR.defined()) return;
  const std::int64_t tokens = a.dqkv.size(0), e = a.heads.head_size;
  base::check(!norm || (a.dq_weight_E.numel() == a.q_weight_E.numel() &&
                        a.dk_weight_E.numel() == a.k_weight_E.numel() && a.qkv_in.dtype == a.dqkv.dtype &&
                        a.qkv_in.numel() == a.dqkv.numel()),
              "qk norm: shapes of the input and of the weights' gradients");
  if (norm && a.span == QkNormSpan::all) return wide_qk_norm_rope_backward(where, a);
  const RowParts parts = norm ? row_parts(tokens) : RowParts{1, tokens};
  auto* q_partial = reinterpret_cast<float*>(where.scratch);
  float* k_partial = norm ? q_partial + parts.count * partial_stride(e) : nullptr;
  const std::int64_t rotated = rotated_elements(a.rope_table_SR, a.heads);
  const bool vectors = aligned(a.qkv_in, a.dqkv, a.rope_table_SR, a.q_weight_E, a.k_weight_E);
  with_type(a.dqkv.dtype, "qk norm: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    with_head_shape<T>(vectors, e, rotated, [&](auto n, auto v, int lanes) {
      constexpr int N = decltype(n)::value, V = decltype(v)::value;
      launch(
          where, {parts.count}, threads_for((a.heads.heads + a.heads.kv_heads) * lanes, kRopeThreads),
          "qk_norm_rope_backward",
          norm ? qk_norm_rope_backward_kernel<T, N, V, true> : qk_norm_rope_backward_kernel<T, N, V, false>,
          rope_backward_args<T>(a, lanes, parts, q_partial, k_partial, partial_stride(e)));
    });
  });
  if (!norm) return;
  sum_partials(where, q_partial, parts.count, a.dq_weight_E, a.mode);
  sum_partials(where, k_partial, parts.count, a.dk_weight_E, a.mode);
}

}  // namespace trainerd::kernels::cuda
