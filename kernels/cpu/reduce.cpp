#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/vector_kernels.h"
#include "kernels/cpu/tiling/blocks.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {

void CpuBackend::block_square_sums(Stream&, const BlockSquareSums& a) {
  base::check(a.sums.numel() == norm_blocks(a.x.numel()), "square sums: one for each block");
  double* sums = a.sums.as<double>();
  for_each_block(pool_, a.x.numel(), kNormBlock, [&](std::int64_t begin, std::int64_t end) {
    sums[begin / kNormBlock] =
        vector_.square_sum(a.x.dtype, a.x.data + begin * size_of(a.x.dtype), end - begin);
  });
}

void CpuBackend::total_square_sum(Stream&, const TotalSquareSum& a) {
  base::check(!a.first_block.empty() && a.first_block.back() <= a.sums.numel(),
              "total square sum: first_block ends at the last block");
  const double* sums = a.sums.as<double>();
  double total = 0;
  std::int32_t nonfinite = -1;
  for (std::size_t run = 0; run + 1 < a.first_block.size(); ++run) {
    for (std::int64_t b = a.first_block[run]; b < a.first_block[run + 1]; ++b) {
      if (nonfinite < 0 && !std::isfinite(sums[b])) nonfinite = static_cast<std::int32_t>(run);
      total += sums[b];
    }
  }
  *a.total.as<double>() = total;
  *a.nonfinite.as<std::int32_t>() = nonfinite;
  if (a.flag.defined()) *a.flag.as<float>() = nonfinite >= 0 ? a.flag_value : 0.0f;
}

void CpuBackend::group_square_sums(Stream&, const GroupSquareSums& a) {
  base::check(a.first_block.size() == a.group_of_run.size() + 1 && a.first_block.back() <= a.sums.numel(),
              "group square sums: a group for each run");
  const double* sums = a.sums.as<double>();
  double* totals = a.totals.as<double>();
  std::fill_n(totals, a.totals.numel(), 0.0);
  for (std::size_t run = 0; run < a.group_of_run.size(); ++run) {
    base::check(a.group_of_run[run] >= 0 && a.group_of_run[run] < a.totals.numel(),
                "group square sums: groups are those of the totals");
    for (std::int64_t b = a.first_block[run]; b < a.first_block[run + 1]; ++b)
      totals[a.group_of_run[run]] += sums[b];
  }
}

void CpuBackend::ordered_sum(Stream& stream, const OrderedSum& a) {
  const float* x = a.x.as<float>();
  const ArenaScope scope(stream.scratch());
  auto* sums = reinterpret_cast<double*>(
      stream.scratch().take_bytes(scratch_bytes(a, target_), MemoryTerm::workspace));
  for_each_block(pool_, a.x.numel(), kOrderedSumBlock, [&](std::int64_t begin, std::int64_t end) {
    double total = 0;
    for (std::int64_t i = begin; i < end; ++i) total += static_cast<double>(x[i]);
    sums[begin / kOrderedSumBlock] = total;
  });
  double total = 0;
  for (std::int64_t i = 0; i < (a.x.numel() + kOrderedSumBlock - 1) / kOrderedSumBlock; ++i) total += sums[i];
  double& out = *a.out.as<double>();
  out = a.mode == WriteMode::accumulate ? out + total : total;
}

// The hash, the same on every backend. The bytes are read as little-endian 32-bit words w[i], the last one
// zero-padded. All arithmetic is modulo 2^32, l and h are the low and high halves of i, and mix is
// MurmurHash3's finaliser:
//   first  = sum over i of mix(w[i] ^ mix(l * 9e3779b1 + h * 7feb352d + 165667b1))
//   second = sum over i of mix((w[i] * 2c1b3c6d) ^ (l * 85ebca77 + h * 846ca68b + 27d4eb2f))
//   out    = (first ^ low half of the length in bytes, second ^ its high half)
// Each word is mixed with its index before the sums, so equal words at different positions hash differently.
// The sums can be taken in any order, by any number of lanes and threads.
void CpuBackend::tensor_hash(Stream&, const TensorHash& a) {
  const std::int64_t bytes = a.x.bytes(), words = bytes / 4;
  std::atomic<std::uint32_t> first = 0, second = 0;
  const auto take = [&](const std::byte* from, std::int64_t index, std::int64_t count) {
    std::uint32_t sums[2];
    vector_.hash_words(from, index, count, sums);
    first.fetch_add(sums[0], std::memory_order_relaxed);
    second.fetch_add(sums[1], std::memory_order_relaxed);
  };
  // A power of two: no block crosses a multiple of 2^32 words, as hash_words requires.
  constexpr std::int64_t kWords = 16384;
  for_each_block(pool_, words, kWords, [&](std::int64_t begin, std::int64_t end) {
    take(a.x.data + 4 * begin, begin, end - begin);
  });
  if (bytes > 4 * words) {
    std::byte last[4]{};
    std::memcpy(last, a.x.data + 4 * words, static_cast<std::size_t>(bytes - 4 * words));
    take(last, words, 1);
  }
  const auto length = static_cast<std::uint64_t>(bytes);
  const std::uint32_t hash[2] = {first.load() ^ static_cast<std::uint32_t>(length),
                                 second.load() ^ static_cast<std::uint32_t>(length >> 32)};
  base::check(a.out.bytes() == sizeof(hash), "hash: the output is two int32");
  std::memcpy(a.out.data, hash, sizeof(hash));
}

}  // namespace trainerd::kernels
