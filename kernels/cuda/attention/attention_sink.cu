// Adds a sink to the keys of each row, after attention with any kernel. Floor = bytes / memory bandwidth: the
// forward reads and writes out once, the backward reads out and its gradient once.

#include "kernels/cuda/attention/attention.cuh"

namespace trainerd::kernels::cuda {
namespace {

/// One warp per head of a token. A row without keys has lse -infinity and out 0.
template <class T, class W>
__global__ void __launch_bounds__(kAttentionThreads)
    sink_forward_kernel(Heads<T> out, float* lse_HT, const W* sinks, std::int64_t tokens, int heads, int E) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * (kAttentionThreads / 32) + warp_id();
  if (i >= tokens * heads) return;
  const int head = static_cast<int>(i % heads);
  float* const to_lse = lse_HT + head * tokens + i / heads;
  const float lse = *to_lse, sink = widen(sinks[head]);
  const float above = sink - lse, ratio = expf(-fabsf(above)),
              kept = (above > 0.0f ? ratio : 1.0f) / (1.0f + ratio);
  T* o = out.at(i / heads, head * E);
  for (int e = lane_id(); e < E; e += 32) o[e] = narrow<T>(widen(o[e]) * kept);
  __syncwarp();  // every lane has read the row's lse
  if (lane_id() == 0) *to_lse = fmaxf(lse, sink) + log1pf(ratio);
}

constexpr int kSinkThreads = 1024, kSinkTokens = 4;

/// One block per head. Its warps take groups of tokens in turn, whose loads are in flight together, and all
/// sums have a fixed order.
template <class T, class W, class G>
__global__ void __launch_bounds__(kSinkThreads)
    sink_backward_kernel(Heads<const T> out, Heads<const T> dout, const float* lse_HT, const W* sinks,
                         G* dsinks, bool adds, std::int64_t tokens, int E) {
  const int head = static_cast<int>(blockIdx.x);
  const float sink = widen(sinks[head]);
  double sums[1] = {0.0};
  for (std::int64_t first = warp_id() * kSinkTokens; first < tokens;
       first += warps_of_block() * kSinkTokens) {
    float lse[kSinkTokens], products[kSinkTokens] = {};
#pragma unroll
    for (int i = 0; i < kSinkTokens; ++i)
      lse[i] = first + i < tokens ? lse_HT[head * tokens + first + i] : INFINITY;
    for (int e = lane_id(); e < E; e += 32)
#pragma unroll
      for (int i = 0; i < kSinkTokens; ++i)
        if (first + i < tokens)
          products[i] = fmaf(widen(*out.at(first + i, head * E + e)),
                             widen(*dout.at(first + i, head * E + e)), products[i]);
#pragma unroll
    for (int i = 0; i < kSinkTokens; ++i) sums[0] -= static_cast<double>(expf(sink - lse[i]) * products[i]);
  }
  block_sums(sums);
  if (threadIdx.x == 0)
    dsinks[head] = narrow<G>(static_cast<float>(sums[0]) + (adds ? widen(dsinks[head]) : 0.0f));
}

}  // namespace

void attention_sink_forward(const Launch& where, const AttentionSinkForward& a) {
  check_args(a);
  const std::int64_t tokens = a.out_THE.rows, heads = a.out_THE.heads;
  with_types(a.out_THE.dtype, a.sinks_H.dtype, [&](auto t, auto w) {
    using T = decltype(t);
    using W = decltype(w);
    launch(where, {ceil_div(tokens * heads, kAttentionThreads / 32)}, kAttentionThreads,
           "attention_sink_forward", sink_forward_kernel<T, W>, heads_at<T>(a.out_THE), a.lse_HT.as<float>(),
           at<W>(a.sinks_H), tokens, static_cast<int>(heads), static_cast<int>(a.out_THE.head_size));
  });
}

void attention_sink_backward(const Launch& where, const AttentionSinkBackward& a) {
  check_args(a);
  with_types(a.out_THE.dtype, a.sinks_H.dtype, [&](auto t, auto w) {
    using T = decltype(t);
    using W = decltype(w);
    with_state_type(a.dsinks_H.dtype, "attention: gradients of sinks are fp32 or bf16", [&](auto g) {
      using G = decltype(g);
      launch(where, {a.out_THE.heads}, kSinkThreads, "attention_sink_backward", sink_backward_kernel<T, W, G>,
             heads_at<const T>(a.out_THE), heads_at<const T>(a.dout_THE), a.lse_HT.as<float>(),
             at<W>(a.sinks_H), at<G>(a.dsinks_H), a.mode == WriteMode::accumulate, a.out_THE.rows,
             static_cast<int>(a.out_THE.head_size));
    });
  });
}

}  // namespace trainerd::kernels::cuda
