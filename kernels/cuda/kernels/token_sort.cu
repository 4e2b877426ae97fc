// A least-significant-digit radix sort of tokens by table row. It is stable and uses no atomics, so the order
// equals that of a serial sort. Bytes: 24 per token and pass; at 32768 tokens the six to nine launches cost
// more than the bytes.

#include "kernels/cuda/kernels/reduce.cuh"
#include "kernels/cuda/kernels/token_sort.cuh"

namespace trainerd::kernels::cuda {
namespace {

constexpr int kWarps = kSortThreads / 32;
constexpr int kScanThreads = 1024;
static_assert(kSortThreads == kSortDigits, "each thread owns one digit");

__global__ void __launch_bounds__(kSortThreads)
    make_keys_kernel(const std::int32_t* ids, std::int64_t first_row, std::int64_t held, std::int64_t tokens,
                     std::int32_t* rows, std::int32_t* order) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kSortThreads + threadIdx.x;
  if (t >= tokens) return;
  const std::int64_t row = ids[t] - first_row;
  rows[t] = static_cast<std::int32_t>(row >= 0 && row < held ? row : held);
  order[t] = static_cast<std::int32_t>(t);
}

/// Counts, in `counts`, how many lanes of each warp have each digit; `counts` must be zero before. Returns
/// how many lower lanes of the warp have this thread's digit. All threads must call it; `valid` is false for
/// an element beyond the end.
__device__ inline int count_digits(int digit, bool valid, std::int32_t (&counts)[kWarps][kSortDigits]) {
  const unsigned same = __match_any_sync(kFullWarp, valid ? digit : kSortDigits),
                 below = (1u << lane_id()) - 1;
  const int rank = __popc(same & below);
  if (valid && rank == 0) counts[warp_id()][digit] = __popc(same);
  return rank;
}

/// totals[digit * tiles + tile] = number of elements of the tile with the digit.
__global__ void __launch_bounds__(kSortThreads)
    count_kernel(const std::int32_t* rows, std::int64_t tokens, int shift, std::int32_t* totals) {
  __shared__ std::int32_t counts[kWarps][kSortDigits];
  const int digit_of_thread = static_cast<int>(threadIdx.x);
  for (int w = 0; w < kWarps; ++w) counts[w][digit_of_thread] = 0;
  std::int32_t total = 0;
  for (int round = 0; round < kSortTile / kSortThreads; ++round) {
    const std::int64_t i =
        static_cast<std::int64_t>(blockIdx.x) * kSortTile + round * kSortThreads + threadIdx.x;
    __syncthreads();
    count_digits(i < tokens ? rows[i] >> shift & 255 : 0, i < tokens, counts);
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      total += counts[w][digit_of_thread];
      counts[w][digit_of_thread] = 0;
    }
  }
  totals[static_cast<std::int64_t>(digit_of_thread) * gridDim.x + blockIdx.x] = total;
}

/// x[i] = x[0] + ... + x[i - 1], in one block.
__global__ void __launch_bounds__(kScanThreads) scan_kernel(std::int32_t* x, std::int64_t n) {
  __shared__ std::int32_t warp_sums[32];
  std::int32_t before = 0;
  for (std::int64_t begin = 0; begin < n; begin += kScanThreads) {
    const std::int64_t i = begin + threadIdx.x;
    const std::int32_t value = i < n ? x[i] : 0;
    std::int32_t sum = value;  // of the warp's lanes up to this one
    for (int offset = 1; offset < 32; offset *= 2) {
      const std::int32_t other = __shfl_up_sync(kFullWarp, sum, offset);
      if (lane_id() >= offset) sum += other;
    }
    if (lane_id() == 31) warp_sums[warp_id()] = sum;
    __syncthreads();
    std::int32_t lower = 0, all = 0;
    for (int w = 0; w < 32; ++w) {
      if (w < warp_id()) lower += warp_sums[w];
      all += warp_sums[w];
    }
    __syncthreads();
    if (i < n) x[i] = before + lower + sum - value;
    before += all;
  }
}

/// Moves each element behind those of lower digits, of lower tiles with its digit, and behind earlier ones of
/// its tile with its digit.
__global__ void __launch_bounds__(kSortThreads)
    scatter_kernel(const std::int32_t* rows, const std::int32_t* order, std::int64_t tokens, int shift,
                   const std::int32_t* starts, std::int32_t* rows_out, std::int32_t* order_out) {
  __shared__ std::int32_t counts[kWarps][kSortDigits], start[kSortDigits];
  const int digit_of_thread = static_cast<int>(threadIdx.x);
  for (int w = 0; w < kWarps; ++w) counts[w][digit_of_thread] = 0;
  start[digit_of_thread] = starts[static_cast<std::int64_t>(digit_of_thread) * gridDim.x + blockIdx.x];
  for (int round = 0; round < kSortTile / kSortThreads; ++round) {
    const std::int64_t i =
        static_cast<std::int64_t>(blockIdx.x) * kSortTile + round * kSortThreads + threadIdx.x;
    const bool valid = i < tokens;
    const std::int32_t row = valid ? rows[i] : 0;
    const int digit = row >> shift & 255;
    __syncthreads();
    std::int32_t place = count_digits(digit, valid, counts);
    __syncthreads();
    if (valid) {
      place += start[digit];
      for (int w = 0; w < warp_id(); ++w) place += counts[w][digit];
      rows_out[place] = row;
      order_out[place] = order[i];
    }
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      start[digit_of_thread] += counts[w][digit_of_thread];
      counts[w][digit_of_thread] = 0;
    }
  }
}

}  // namespace

SortedTokens sort_tokens(const Launch& where, const std::int32_t* ids, std::int64_t first_row,
                         std::int64_t held, const SortLayout& plan) {
  base::check(plan.tokens <= 0x7fffffff && held < 0x7fffffff,
              "tokens, or copies of them for experts, and the rows that they choose are counted in 31 bits");
  const auto column = [&](int i) {
    return reinterpret_cast<std::int32_t*>(where.scratch + i * plan.column_bytes);
  };
  std::int32_t *rows = column(0), *other_rows = column(1), *order = column(2), *other_order = column(3),
               *counts = column(4);
  launch(where, {ceil_div(plan.tokens, kSortThreads)}, kSortThreads, "make_keys", make_keys_kernel, ids,
         first_row, held, plan.tokens, rows, order);
  for (int pass = 0; pass < plan.passes; ++pass) {
    launch(where, {plan.tiles}, kSortThreads, "sort: count", count_kernel, rows, plan.tokens, 8 * pass,
           counts);
    launch(where, {plan.tiles == 0 ? 0 : 1}, kScanThreads, "sort: scan", scan_kernel, counts,
           plan.tiles * kSortDigits);
    launch(where, {plan.tiles}, kSortThreads, "sort: scatter", scatter_kernel, rows, order, plan.tokens,
           8 * pass, counts, other_rows, other_order);
    std::swap(rows, other_rows);
    std::swap(order, other_order);
  }
  return {rows, order};
}

}  // namespace trainerd::kernels::cuda
