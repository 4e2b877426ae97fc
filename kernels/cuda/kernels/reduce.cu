// Reductions to a few values. Each reads its input once: floor = bytes / memory bandwidth. Orders only depend
// on the shape.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cuda/kernels/launch.cuh"
#include "kernels/cuda/kernels/reduce.cuh"
#include "kernels/cuda/kernels/vec.cuh"
#include "kernels/cuda/launch/hash_launch.h"

namespace trainerd::kernels::cuda {
namespace {

constexpr int kReduceThreads = 256;

/// One block per block of the norm. Squares and sums are in double on every backend; the order differs from
/// the CPU's.
template <class T, int N>
__global__ void __launch_bounds__(kReduceThreads)
    block_square_sums_kernel(const T* x, std::int64_t n, double* sums) {
  const std::int64_t begin = blockIdx.x * kNormBlock, left = n - begin,
                     count = left < kNormBlock ? left : kNormBlock;
  double total = 0.0;
  for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * N; i < count; i += kReduceThreads * N) {
    float v[N];
    if (i + N <= count) {
      load<N>(x + begin + i, v);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = i + k < count ? widen(x[begin + i + k]) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const double wide = v[k];
      total += wide * wide;
    }
  }
  total = block_sum(total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

constexpr int kTotalThreads = 1024;
constexpr int kRunsOfLaunch = 1024;

struct Runs {
  int count;
  std::int64_t first_block[kRunsOfLaunch + 1];  ///< part of the kernel parameters: 8 kB
};

/// One block adds all sums of these runs: for 2^17 blocks (2 G elements) it reads 1 MB. `first_run` is the
/// number of the first run here. If it is 0 the outputs are assigned, otherwise accumulated.
__global__ void __launch_bounds__(kTotalThreads)
    total_square_sum_kernel(const double* sums, const __grid_constant__ Runs runs, std::int32_t first_run,
                            double* total, std::int32_t* nonfinite, float* flag, float flag_value) {
  constexpr std::int32_t kNone = 0x7fffffff;
  const std::int64_t begin = runs.first_block[0], count = runs.first_block[runs.count] - begin;
  double sum = 0.0;
  std::int32_t bad[1] = {kNone};
  for (std::int64_t i = threadIdx.x; i < count; i += kTotalThreads) {
    const double x = sums[begin + i];
    sum += x;
    if (bad[0] == kNone && !(fabs(x) <= std::numeric_limits<double>::max()))
      bad[0] = static_cast<std::int32_t>(i);
  }
  sum = block_sum(sum);
  block_reduce(bad, kNone, Min{});
  if (threadIdx.x != 0) return;
  std::int32_t run = -1;
  if (bad[0] != kNone) {
    run = 0;
    while (runs.first_block[run + 1] <= begin + bad[0]) ++run;
    run += first_run;
  }
  const bool add = first_run > 0;
  *total = add ? *total + sum : sum;
  if (!add || *nonfinite < 0) *nonfinite = run;
  if (flag != nullptr) *flag = *nonfinite >= 0 ? flag_value : 0.0f;
}

constexpr int kGroupThreads = 256;

struct GroupRuns {
  int count;
  std::int64_t first_block[kRunsOfLaunch + 1];  ///< part of the kernel parameters: 12 kB
  std::int32_t group[kRunsOfLaunch];
};

/// One block per group adds the sums of the group's runs, in order.
__global__ void __launch_bounds__(kGroupThreads)
    group_square_sums_kernel(const double* sums, const __grid_constant__ GroupRuns runs, bool add,
                             double* totals) {
  double sum = 0.0;
  for (int run = 0; run < runs.count; ++run) {
    if (runs.group[run] != static_cast<std::int32_t>(blockIdx.x)) continue;
    for (std::int64_t b = runs.first_block[run] + threadIdx.x; b < runs.first_block[run + 1];
         b += kGroupThreads)
      sum += sums[b];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) totals[blockIdx.x] = add ? totals[blockIdx.x] + sum : sum;
}

constexpr int kOrderedBlock = 1024;  ///< elements added sequentially, as ordered_sum defines
constexpr int kOrderedThreads = 128;

/// One thread adds the block's elements in order; the others load them into shared memory.
__global__ void __launch_bounds__(kOrderedThreads)
    ordered_blocks_kernel(const float* x, std::int64_t n, double* sums) {
  __shared__ float near[kOrderedBlock];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kOrderedBlock, left = n - begin;
  const int count = left < kOrderedBlock ? static_cast<int>(left) : kOrderedBlock;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kOrderedThreads) near[i] = x[begin + i];
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0.0;
  for (int i = 0; i < count; ++i) total += static_cast<double>(near[i]);
  sums[blockIdx.x] = total;
}

__global__ void ordered_total_kernel(const double* sums, std::int64_t blocks, double* out, bool add) {
  double total = 0.0;
  for (std::int64_t i = 0; i < blocks; ++i) total += sums[i];
  *out = add ? *out + total : total;
}

/// The finaliser of MurmurHash3 (Appleby).
__host__ __device__ inline std::uint32_t mix(std::uint32_t h) {
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

/// The two sums of the hash that kernels/cpu/reduce.cpp defines.
struct HashSums {
  std::uint32_t value[2] = {0, 0};
  __host__ __device__ void take(std::uint32_t word, std::int64_t index) {
    const auto place = static_cast<std::uint32_t>(index), high = static_cast<std::uint32_t>(index >> 32);
    value[0] += mix(word ^ mix(place * 0x9e3779b1u + high * 0x7feb352du + 0x165667b1u));
    value[1] += mix((word * 0x2c1b3c6du) ^ (place * 0x85ebca77u + high * 0x846ca68bu + 0x27d4eb2fu));
  }
};

/// Word `index` of the bytes, zero-padded at the end, from an address of any alignment.
__device__ inline std::uint32_t word_at(const std::byte* x, std::int64_t bytes, std::int64_t index) {
  std::uint32_t word = 0;
  for (int b = 0; b < 4; ++b)
    if (4 * index + b < bytes) word |= static_cast<std::uint32_t>(x[4 * index + b]) << (8 * b);
  return word;
}

/// Four words per thread and step if the address allows 16-byte loads.
template <bool kVectors>
__global__ void __launch_bounds__(kReduceThreads)
    hash_blocks_kernel(const std::byte* x, std::int64_t bytes, std::uint32_t* sums) {
  HashSums hash;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kReduceThreads + threadIdx.x,
                     threads = static_cast<std::int64_t>(gridDim.x) * kReduceThreads;
  const std::int64_t quads = kVectors ? bytes / 16 : 0, words = ceil_div(bytes, 4);
  if constexpr (kVectors) {
    for (std::int64_t quad = thread; quad < quads; quad += threads) {
      const uint4 w = *reinterpret_cast<const uint4*>(x + 16 * quad);
      hash.take(w.x, 4 * quad);
      hash.take(w.y, 4 * quad + 1);
      hash.take(w.z, 4 * quad + 2);
      hash.take(w.w, 4 * quad + 3);
    }
  }
  for (std::int64_t i = 4 * quads + thread; i < words; i += threads) hash.take(word_at(x, bytes, i), i);
  block_sums(hash.value);
  if (threadIdx.x != 0) return;
  sums[2 * blockIdx.x] = hash.value[0];
  sums[2 * blockIdx.x + 1] = hash.value[1];
}

__global__ void __launch_bounds__(kReduceThreads)
    hash_total_kernel(const std::uint32_t* sums, std::int64_t blocks, std::int64_t bytes,
                      std::uint32_t* out) {
  std::uint32_t total[2] = {0, 0};
  for (std::int64_t i = threadIdx.x; i < blocks; i += kReduceThreads) {
    total[0] += sums[2 * i];
    total[1] += sums[2 * i + 1];
  }
  block_sums(total);
  if (threadIdx.x != 0) return;
  out[0] = total[0] ^ static_cast<std::uint32_t>(bytes);
  out[1] = total[1] ^ static_cast<std::uint32_t>(static_cast<std::uint64_t>(bytes) >> 32);
}

}  // namespace

void block_square_sums(const Launch& where, const BlockSquareSums& a) {
  const std::int64_t n = a.x.numel();
  base::check(a.sums.numel() == norm_blocks(n), "square sums: one for each block");
  with_type(a.x.dtype, "square sums: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    launch(where, {norm_blocks(n)}, kReduceThreads, "block_square_sums",
           aligned(a.x) ? block_square_sums_kernel<T, kVec<T>> : block_square_sums_kernel<T, 1>, at<T>(a.x),
           n, a.sums.as<double>());
  });
}

void total_square_sum(const Launch& where, const TotalSquareSum& a) {
  base::check(!a.first_block.empty() && a.first_block.back() <= a.sums.numel(),
              "total square sum: first_block ends at the last block");
  const std::size_t count = a.first_block.size() - 1;
  std::size_t first = 0;
  do {  // at least once, so that the outputs are written
    Runs runs{};
    runs.count = static_cast<int>(std::min<std::size_t>(count - first, kRunsOfLaunch));
    std::memcpy(runs.first_block, a.first_block.data() + first, sizeof(std::int64_t) * (runs.count + 1));
    launch(where, {1}, kTotalThreads, "total_square_sum", total_square_sum_kernel, a.sums.as<double>(), runs,
           static_cast<std::int32_t>(first), a.total.as<double>(), a.nonfinite.as<std::int32_t>(),
           a.flag.defined() ? a.flag.as<float>() : nullptr, a.flag_value);
    first += runs.count;
  } while (first < count);
}

void group_square_sums(const Launch& where, const GroupSquareSums& a) {
  base::check(a.first_block.size() == a.group_of_run.size() + 1 && a.first_block.back() <= a.sums.numel(),
              "group square sums: a group for each run");
  const std::size_t count = a.group_of_run.size();
  std::size_t first = 0;
  do {  // at least once, so that the totals are written
    GroupRuns runs{};
    runs.count = static_cast<int>(std::min<std::size_t>(count - first, kRunsOfLaunch));
    std::memcpy(runs.first_block, a.first_block.data() + first, sizeof(std::int64_t) * (runs.count + 1));
    std::copy_n(a.group_of_run.data() + first, runs.count, runs.group);
    launch(where, {a.totals.numel()}, kGroupThreads, "group_square_sums", group_square_sums_kernel,
           a.sums.as<double>(), runs, first > 0, a.totals.as<double>());
    first += static_cast<std::size_t>(runs.count);
  } while (first < count);
}

void ordered_sum(const Launch& where, const OrderedSum& a) {
  const std::int64_t n = a.x.numel(), blocks = ceil_div(n, kOrderedBlock);
  auto* sums = reinterpret_cast<double*>(where.scratch);
  launch(where, {blocks}, kOrderedThreads, "ordered_sum", ordered_blocks_kernel, a.x.as<float>(), n, sums);
  launch(where, {1}, 1, "ordered_sum", ordered_total_kernel, sums, blocks, a.out.as<double>(),
         a.mode == WriteMode::accumulate);
}

void tensor_hash(const Launch& where, const TensorHash& a) {
  base::check(a.out.bytes() == 8, "hash: the output is two int32");
  const std::int64_t bytes = a.x.bytes(), blocks = hash_blocks(bytes);
  auto* sums = reinterpret_cast<std::uint32_t*>(where.scratch);
  launch(where, {blocks}, kReduceThreads, "tensor_hash",
         aligned(a.x) ? hash_blocks_kernel<true> : hash_blocks_kernel<false>, a.x.data, bytes, sums);
  launch(where, {1}, kReduceThreads, "tensor_hash", hash_total_kernel, sums, blocks, bytes,
         reinterpret_cast<std::uint32_t*>(a.out.data));
}

}  // namespace trainerd::kernels::cuda
