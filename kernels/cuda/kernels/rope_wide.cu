// Rotation of query and key heads after an RMS norm over all query heads and one over all key heads (OLMo 2).
// Floor = bytes / memory bandwidth, bytes as in rope.cu. Each row is read twice, the second time from the
// cache. If the heads are on several ranks, a separate kernel computes the sums first, and they are summed
// over the ranks.

#include "kernels/cuda/kernels/rope.cuh"

namespace trainerd::kernels::cuda {
namespace {

/// One block per token. `out` must not be `in`.
template <class T, int N, int V>
__global__ void __launch_bounds__(kRopeThreads) wide_forward_kernel(RopeForward<T> a) {
  const HeadLanes<N, V> at(a.head_size, a.rotated, a.lanes);
  const std::int64_t token = blockIdx.x, row = token * (a.heads + 2 * a.kv_heads) * a.head_size;
  const std::int64_t rotated = a.heads + a.kv_heads, all = rotated + a.kv_heads;
  float low[V][N], high[V][N], squares[2] = {0.0f, 0.0f};
  if (a.squares != nullptr) {
    squares[0] = a.squares[2 * token], squares[1] = a.squares[2 * token + 1];
  } else {
    for (std::int64_t head = at.group; head < rotated; head += at.groups) {
      at.load_head(a.in + row + head * a.head_size, low, high);
      const float of_head = square_sum(low, high);
      if (head < a.heads) squares[0] += of_head;
      else squares[1] += of_head;
    }
    block_sums(squares);
  }
  const float q_heads = static_cast<float>(a.heads) * a.ranks,
              k_heads = static_cast<float>(a.kv_heads) * a.ranks;
  const float q_rstd = rsqrtf(squares[0] * a.inverse_size / q_heads + a.eps),
              k_rstd = rsqrtf(squares[1] * a.inverse_size / k_heads + a.eps);
  float cosine[V][N], sine[V][N];
  if (a.table != nullptr) at.load_angles(a.table + a.positions[token] * a.rotated, cosine, sine);
  for (std::int64_t head = at.group; head < all; head += at.groups) {
    at.load_head(a.in + row + head * a.head_size, low, high);
    if (head < rotated) {
      const bool query = head < a.heads;
      const float rstd = query ? q_rstd : k_rstd;
      float w_low[V][N], w_high[V][N];
      at.load_head((query ? a.q_weight : a.k_weight) + (query ? head : head - a.heads) * a.head_size, w_low,
                   w_high);
#pragma unroll
      for (int v = 0; v < V; ++v)
#pragma unroll
        for (int k = 0; k < N; ++k) {
          low[v][k] = low[v][k] * rstd * (w_low[v][k] + a.weight_offset);
          high[v][k] = high[v][k] * rstd * (w_high[v][k] + a.weight_offset);
          if (a.table == nullptr) continue;
          const float x = low[v][k], y = high[v][k], c = cosine[v][k], s = sine[v][k];
          low[v][k] = fmaf(-y, s, x * c);
          high[v][k] = fmaf(y, c, x * s);
        }
    }
    at.store_head(a.out + row + head * a.head_size, low, high);
  }
}

/// Data of one head for the backward: g (dy rotated back), x, and the weight plus its offset. Each head reads
/// the table's row again from the cache, because registers for it would spill.
template <int N, int V>
struct HeadRead {
  float low[V][N], high[V][N], x_low[V][N], x_high[V][N], w_low[V][N], w_high[V][N];

  /// `Args`: RopeBackward, or a type with the same members.
  template <class Args>
  __device__ void load(const Args& a, const HeadLanes<N, V>& at, std::int64_t token, std::int64_t head) {
    const std::int64_t place = (token * (a.heads + 2 * a.kv_heads) + head) * a.head_size;
    const bool query = head < a.heads;
    at.load_head(a.dqkv + place, low, high);
    if (a.table != nullptr) {
      float cosine[V][N], sine[V][N];
      at.load_angles(a.table + a.positions[token] * a.rotated, cosine, sine);
#pragma unroll
      for (int v = 0; v < V; ++v)
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const float x = low[v][k], y = high[v][k], c = cosine[v][k], s = sine[v][k];
          low[v][k] = fmaf(y, s, x * c);
          high[v][k] = fmaf(-x, s, y * c);
        }
    }
    at.load_head(a.in + place, x_low, x_high);
    at.load_head((query ? a.q_weight : a.k_weight) + (query ? head : head - a.heads) * a.head_size, w_low,
                 w_high);
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int k = 0; k < N; ++k) w_low[v][k] += a.weight_offset, w_high[v][k] += a.weight_offset;
  }
  /// Sum of g w x over this lane's elements.
  __device__ float products() const {
    float total = 0.0f;
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int k = 0; k < N; ++k) {
        // Elements beyond a head's end were loaded as zeros of x.
        total =
            fmaf(low[v][k] * w_low[v][k], x_low[v][k], fmaf(high[v][k] * w_high[v][k], x_high[v][k], total));
      }
    return total;
  }
};

template <class T>
struct RopeSums {
  const T* in;
  const T* dqkv;  ///< null: sums of squares
  const std::int32_t* positions;
  const float* table;
  const T* q_weight;
  const T* k_weight;
  float* sums;
  std::int64_t heads, kv_heads, head_size, rotated;
  int lanes;
  float weight_offset;
};

/// One block per token.
template <class T, int N, int V>
__global__ void __launch_bounds__(kRopeThreads) wide_sums_kernel(RopeSums<T> a) {
  const HeadLanes<N, V> at(a.head_size, a.rotated, a.lanes);
  const std::int64_t token = blockIdx.x, row = token * (a.heads + 2 * a.kv_heads) * a.head_size;
  float sums[2] = {0.0f, 0.0f};
  for (std::int64_t head = at.group; head < a.heads + a.kv_heads; head += at.groups) {
    HeadRead<N, V> of;
    float of_head;
    if (a.dqkv != nullptr) {
      of.load(a, at, token, head);
      of_head = of.products();
    } else {
      at.load_head(a.in + row + head * a.head_size, of.x_low, of.x_high);
      of_head = square_sum(of.x_low, of.x_high);
    }
    if (head < a.heads) sums[0] += of_head;
    else sums[1] += of_head;
  }
  block_sums(sums);
  if (threadIdx.x == 0) a.sums[2 * token] = sums[0], a.sums[2 * token + 1] = sums[1];
}

/// g = dy rotated back, dx = rstd (g w - x rstd^2 mean(g w x)) and dweight += g x rstd, with the mean over
/// all query heads or all key heads. In place. A block processes the tokens of its part. Only one thread
/// writes an element of its partial sums, because the same lanes process a head for each token.
template <class T, int N, int V>
__global__ void __launch_bounds__(kRopeThreads)
    wide_backward_kernel(RopeBackward<T> a, std::int64_t k_stride) {
  const HeadLanes<N, V> at(a.head_size, a.rotated, a.lanes);
  const std::int64_t columns = (a.heads + 2 * a.kv_heads) * a.head_size, rotated = a.heads + a.kv_heads;
  const std::int64_t begin = blockIdx.x * a.tokens_of_part,
                     end = begin + a.tokens_of_part < a.tokens ? begin + a.tokens_of_part : a.tokens;
  float* const q_partial = a.q_partial + blockIdx.x * a.stride;
  float* const k_partial = a.k_partial + blockIdx.x * k_stride;
  for (std::int64_t token = begin; token < end; ++token) {
    HeadRead<N, V> of;
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // squares of queries and of keys, then products of both
    if (a.squares != nullptr) {
      sums[0] = a.squares[2 * token], sums[1] = a.squares[2 * token + 1];
      sums[2] = a.products[2 * token], sums[3] = a.products[2 * token + 1];
    } else {
      for (std::int64_t head = at.group; head < rotated; head += at.groups) {
        of.load(a, at, token, head);
        const float products = of.products();
        const float squares = square_sum(of.x_low, of.x_high);
        if (head < a.heads) sums[0] += squares, sums[2] += products;
        else sums[1] += squares, sums[3] += products;
      }
      block_sums(sums);
    }
    const float q_size = a.inverse_size / (static_cast<float>(a.heads) * a.ranks),
                k_size = a.inverse_size / (static_cast<float>(a.kv_heads) * a.ranks);
    const float q_rstd = rsqrtf(sums[0] * q_size + a.eps), k_rstd = rsqrtf(sums[1] * k_size + a.eps);
    const float q_mean = sums[2] * q_size * q_rstd * q_rstd, k_mean = sums[3] * k_size * k_rstd * k_rstd;
    for (std::int64_t head = at.group; head < rotated; head += at.groups) {
      of.load(a, at, token, head);
      const bool query = head < a.heads;
      const float rstd = query ? q_rstd : k_rstd, mean = query ? q_mean : k_mean;
      float* const part = query ? q_partial + head * a.head_size : k_partial + (head - a.heads) * a.head_size;
      float d_low[V][N] = {}, d_high[V][N] = {};
      if (token > begin) at.load_head(part, d_low, d_high);
#pragma unroll
      for (int v = 0; v < V; ++v)
#pragma unroll
        for (int k = 0; k < N; ++k) {
          d_low[v][k] += of.low[v][k] * of.x_low[v][k] * rstd;
          d_high[v][k] += of.high[v][k] * of.x_high[v][k] * rstd;
          of.low[v][k] = fmaf(-of.x_low[v][k], mean, of.low[v][k] * of.w_low[v][k]) * rstd;
          of.high[v][k] = fmaf(-of.x_high[v][k], mean, of.high[v][k] * of.w_high[v][k]) * rstd;
        }
      at.store_head(part, d_low, d_high);
      at.store_head(a.dqkv + token * columns + head * a.head_size, of.low, of.high);
    }
  }
}

}  // namespace

void wide_qk_norm_rope_forward(const Launch& where, const QkNormRopeForward& a) {
  base::check(a.qkv_in.data != a.qkv_out.data, "qk norm: a norm is not made in place");
  check_rank_sums(a.span, a.squares_T2, a.qkv_in.size(0), a.ranks);
  const std::int64_t heads = a.heads.heads + 2 * a.heads.kv_heads;
  const std::int64_t rotated = rotated_elements(a.rope_table_SR, a.heads);
  const bool vectors = aligned(a.qkv_in, a.qkv_out, a.rope_table_SR, a.q_weight_E, a.k_weight_E);
  with_type(a.qkv_in.dtype, "qk norm: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    with_head_shape<T>(vectors, a.heads.head_size, rotated, [&](auto n, auto v, int lanes) {
      launch(where, {a.qkv_in.size(0)}, threads_for(heads * lanes, kRopeThreads), "qk_norm_rope_forward",
             wide_forward_kernel<T, decltype(n)::value, decltype(v)::value>, rope_forward_args<T>(a, lanes));
    });
  });
}

void wide_qk_norm_rope_backward(const Launch& where, const QkNormRopeBackward& a) {
  const std::int64_t tokens = a.dqkv.size(0), e = a.heads.head_size, q = a.heads.heads * e,
                     k = a.heads.kv_heads * e;
  check_rank_sums(a.span, a.squares_T2, tokens, a.ranks);
  check_rank_sums(a.span, a.products_T2, tokens, a.ranks);
  const RowParts parts = row_parts(tokens);
  auto* q_partial = reinterpret_cast<float*>(where.scratch);
  float* k_partial = q_partial + parts.count * partial_stride(q);
  const std::int64_t rotated = rotated_elements(a.rope_table_SR, a.heads);
  const bool vectors = aligned(a.qkv_in, a.dqkv, a.rope_table_SR, a.q_weight_E, a.k_weight_E);
  with_type(a.dqkv.dtype, "qk norm: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    with_head_shape<T>(vectors, e, rotated, [&](auto n, auto v, int lanes) {
      launch(where, {parts.count}, threads_for((a.heads.heads + a.heads.kv_heads) * lanes, kRopeThreads),
             "qk_norm_rope_backward", wide_backward_kernel<T, decltype(n)::value, decltype(v)::value>,
             rope_backward_args<T>(a, lanes, parts, q_partial, k_partial, partial_stride(q)),
             partial_stride(k));
    });
  });
  sum_partials(where, q_partial, parts.count, a.dq_weight_E, a.mode);
  sum_partials(where, k_partial, parts.count, a.dk_weight_E, a.mode);
}

void qk_norm_sums(const Launch& where, const QkNormSums& a) {
  const std::int64_t e = a.heads.head_size, q = a.heads.heads * e, k = a.heads.kv_heads * e,
                     tokens = a.qkv_in.size(0);
  base::check(e > 0 && e <= kLargestCudaHead && a.qkv_in.size(-1) == a.heads.columns(),
              "qk norm: columns of qkv against the head geometry");
  base::check(
      a.q_weight_E.dtype == a.k_weight_E.dtype && a.q_weight_E.numel() == q && a.k_weight_E.numel() == k &&
          (!a.dqkv.defined() || (a.dqkv.dtype == a.qkv_in.dtype && a.dqkv.numel() == a.qkv_in.numel())),
      "qk norm: weights of all heads, and a gradient like its input");
  check_weights(a.qkv_in.dtype, a.q_weight_E.dtype);
  check_rank_sums(QkNormSpan::all, a.sums_T2, tokens, 2);
  const std::int64_t rotated = rotated_elements(a.rope_table_SR, a.heads);
  const bool vectors = aligned(a.qkv_in, a.dqkv, a.rope_table_SR, a.q_weight_E, a.k_weight_E);
  with_type(a.qkv_in.dtype, "qk norm: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    with_head_shape<T>(vectors, e, rotated, [&](auto n, auto v, int lanes) {
      launch(where, {tokens}, threads_for((a.heads.heads + a.heads.kv_heads) * lanes, kRopeThreads),
             "qk_norm_sums", wide_sums_kernel<T, decltype(n)::value, decltype(v)::value>,
             RopeSums<T>{.in = at<T>(a.qkv_in),
                         .dqkv = at<T>(a.dqkv),
                         .positions = at<std::int32_t>(a.positions_T),
                         .table = at<float>(a.rope_table_SR),
                         .q_weight = at<T>(a.q_weight_E),
                         .k_weight = at<T>(a.k_weight_E),
                         .sums = at<float>(a.sums_T2),
                         .heads = a.heads.heads,
                         .kv_heads = a.heads.kv_heads,
                         .head_size = e,
                         .rotated = rotated,
                         .lanes = lanes,
                         .weight_offset = a.weight_offset});
    });
  });
}

}  // namespace trainerd::kernels::cuda
