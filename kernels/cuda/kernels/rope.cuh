#pragma once

// Assignment of lanes to heads, common to the kernels of rope.cu and rope_wide.cu.

#include <cmath>
#include <type_traits>

#include "kernels/cuda/kernels/partials.cuh"
#include "kernels/cuda/kernels/reduce.cuh"
#include "kernels/cuda/kernels/vec.cuh"

namespace trainerd::kernels::cuda {

constexpr int kRopeThreads = 256;

/// A group of `lanes` lanes (a power of two, within a warp) processes one head of one token. A lane handles V
/// runs of N of its pairs, lanes * N apart. Element i of `low` is paired with element i of `high`. The first
/// `turning` pairs are the two halves of the rotated elements, the other pairs those of the rest. A head of
/// odd size (which is never rotated) lacks one partner.
template <int N, int V>
struct HeadLanes {
  // 32 bits suffice for any index in a head; 64 would take registers that the backward kernel lacks.
  int half, size, turning;  ///< half: pairs of a head
  int lanes, lane, group, groups;

  /// `rotated`: number of rotated elements of a head; 0 for none.
  __device__ HeadLanes(std::int64_t head_size, std::int64_t rotated, int lanes_of_head)
      : half(static_cast<int>(head_size + 1) / 2),
        size(static_cast<int>(head_size)),
        turning(rotated > 0 ? static_cast<int>(rotated) / 2 : half),
        lanes(lanes_of_head),
        lane(static_cast<int>(threadIdx.x) % lanes_of_head),
        group(static_cast<int>(threadIdx.x) / lanes_of_head),
        groups(static_cast<int>(blockDim.x) / lanes_of_head) {}
  __device__ int column(int v) const { return (v * lanes + lane) * N; }
  /// Position of the run's elements in the head.
  __device__ int low_place(int v) const { return column(v) < turning ? column(v) : column(v) + turning; }
  __device__ int high_place(int v) const { return column(v) + (column(v) < turning ? turning : half); }
  __device__ bool has_low(int v) const { return column(v) < half; }
  __device__ bool has_high(int v) const { return has_low(v) && high_place(v) < size; }

  /// The lane's elements as stored in memory; zeros for those it lacks.
  template <class T>
  struct RawHead {
    Raw<T, N> low[V] = {}, high[V] = {};
  };
  /// Starts all of the lane's loads before the first is awaited.
  template <class T>
  __device__ RawHead<T> fetch_head(const T* head) const {
    RawHead<T> raw;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (has_low(v)) raw.low[v] = fetch<N>(head + low_place(v));
      if (has_high(v)) raw.high[v] = fetch<N>(head + high_place(v));
    }
    return raw;
  }
  template <class T>
  __device__ static void unpack_head(const RawHead<T>& raw, float (&low)[V][N], float (&high)[V][N]) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      unpack<N>(raw.low[v], low[v]);
      unpack<N>(raw.high[v], high[v]);
    }
  }
  template <class T>
  __device__ void load_head(const T* head, float (&low)[V][N], float (&high)[V][N]) const {
    unpack_head(fetch_head(head), low, high);
  }
  template <class T>
  __device__ void store_head(T* head, const float (&low)[V][N], const float (&high)[V][N]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (has_low(v)) store<N>(head + low_place(v), low[v]);
      if (has_high(v)) store<N>(head + high_place(v), high[v]);
    }
  }
  /// Loads a row of the table. Pairs that are not rotated get the identity rotation.
  __device__ void load_angles(const float* row, float (&cosine)[V][N], float (&sine)[V][N]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int k = 0; k < N; ++k) cosine[v][k] = 1.0f, sine[v][k] = 0.0f;
      if (column(v) >= turning) continue;
      load<N>(row + column(v), cosine[v]);
      load<N>(row + turning + column(v), sine[v]);
    }
  }
  /// Sum over the group's lanes. Every lane of the warp must call it.
  __device__ float group_sum(float x) const {
    for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullWarp, x, offset);
    return x;
  }
};

template <int N, int V>
__device__ inline float square_sum(const float (&low)[V][N], const float (&high)[V][N]) {
  float total = 0.0f;
#pragma unroll
  for (int v = 0; v < V; ++v)
#pragma unroll
    for (int k = 0; k < N; ++k) total = fmaf(low[v][k], low[v][k], fmaf(high[v][k], high[v][k], total));
  return total;
}

template <class T>
struct RopeForward {
  const T* in;
  T* out;  ///< may be `in`: the lanes that write a head read it whole before, and no other lanes read it
  const std::int32_t* positions;
  const float* table;  ///< null: no rotation
  const T* q_weight;   ///< null: no norm
  const T* k_weight;
  std::int64_t heads, kv_heads, head_size, rotated;
  int lanes;
  float eps, inverse_size, weight_offset;
  const float* squares;  ///< two sums per token over all ranks; null: computed here
  float ranks;           ///< number of ranks that the norm spans
};

template <class T>
struct RopeBackward {
  const T* in;  ///< only read with norm weights
  T* dqkv;
  const std::int32_t* positions;
  const float* table;
  const T* q_weight;
  const T* k_weight;
  float* q_partial;  ///< used with norm weights
  float* k_partial;
  std::int64_t tokens, tokens_of_part, stride;
  std::int64_t heads, kv_heads, head_size, rotated;
  int lanes;
  float eps, inverse_size, weight_offset;
  const float* squares;  ///< as in the forward; so are `products`
  const float* products;
  float ranks;
};

/// Calls `f` with the constants N (elements per run) and V (runs per lane), and the number of lanes per head.
/// For the largest head each of 32 lanes has one run of 16 bytes (fp32), or four single elements.
template <class T, class F>
inline void with_head_shape(bool vectors, std::int64_t head_size, std::int64_t rotated, const F& f) {
  const bool wide = vectors && head_size % (2 * kVec<T>) == 0 && rotated % (2 * kVec<T>) == 0;
  const std::int64_t runs = ceil_div((head_size + 1) / 2, wide ? kVec<T> : 1);
  int lanes = 1;
  while (lanes < 32 && lanes < runs) lanes *= 2;
  if (wide) f(std::integral_constant<int, kVec<T>>{}, std::integral_constant<int, 1>{}, lanes);
  else f(std::integral_constant<int, 1>{}, std::integral_constant<int, 4>{}, lanes);
}

template <class T>
RopeForward<T> rope_forward_args(const QkNormRopeForward& a, int lanes) {
  return {.in = at<T>(a.qkv_in),
          .out = at<T>(a.qkv_out),
          .positions = at<std::int32_t>(a.positions_T),
          .table = at<float>(a.rope_table_SR),
          .q_weight = at<T>(a.q_weight_E),
          .k_weight = at<T>(a.k_weight_E),
          .heads = a.heads.heads,
          .kv_heads = a.heads.kv_heads,
          .head_size = a.heads.head_size,
          .rotated = rotated_elements(a.rope_table_SR, a.heads),
          .lanes = lanes,
          .eps = a.eps,
          .inverse_size = 1.0f / static_cast<float>(a.heads.head_size),
          .weight_offset = a.weight_offset,
          .squares = at<float>(a.squares_T2),
          .ranks = static_cast<float>(a.ranks)};
}

/// The parts' sums of the queries' weight are `q_stride` apart.
template <class T>
RopeBackward<T> rope_backward_args(const QkNormRopeBackward& a, int lanes, const RowParts& parts,
                                   float* q_partial, float* k_partial, std::int64_t q_stride) {
  return {.in = at<T>(a.qkv_in),
          .dqkv = at<T>(a.dqkv),
          .positions = at<std::int32_t>(a.positions_T),
          .table = at<float>(a.rope_table_SR),
          .q_weight = at<T>(a.q_weight_E),
          .k_weight = at<T>(a.k_weight_E),
          .q_partial = q_partial,
          .k_partial = k_partial,
          .tokens = a.dqkv.size(0),
          .tokens_of_part = parts.rows,
          .stride = q_stride,
          .heads = a.heads.heads,
          .kv_heads = a.heads.kv_heads,
          .head_size = a.heads.head_size,
          .rotated = rotated_elements(a.rope_table_SR, a.heads),
          .lanes = lanes,
          .eps = a.eps,
          .inverse_size = 1.0f / static_cast<float>(a.heads.head_size),
          .weight_offset = a.weight_offset,
          .squares = at<float>(a.squares_T2),
          .products = at<float>(a.products_T2),
          .ranks = static_cast<float>(a.ranks)};
}

/// Norms over all query heads and over all key heads, with the rotation. The callers in rope.cu have checked
/// the arguments.
void wide_qk_norm_rope_forward(const Launch& where, const QkNormRopeForward& a);
void wide_qk_norm_rope_backward(const Launch& where, const QkNormRopeBackward& a);

}  // namespace trainerd::kernels::cuda
