#include <bit>

#include "io/tokens/token_source.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

// The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014): every input bit reaches every output bit.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Luby and Rackoff need four rounds. Small halves mix less per round, so eight are used.
constexpr int kRounds = 8;

}  // namespace

std::uint64_t permute_index(std::uint64_t p, std::uint64_t n, std::uint64_t key) {
  base::check(p < n, "permute_index: the place lies outside the permutation");
  if (n == 1) return 0;
  const int half = (static_cast<int>(std::bit_width(n - 1)) + 1) /
                   2;  // the network permutes [0, 4^half), and 4^half < 4 n
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  // Cycle walking: repeats a permutation of the larger set until the value falls into [0, n). The result is a
  // permutation of [0, n).
  do {
    std::uint64_t left = p >> half, right = p & mask;
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t round_key =
          mix(key + 0x9e3779b97f4a7c15ull * static_cast<std::uint64_t>(round + 1));
      const std::uint64_t swapped = right;
      right = left ^ (mix(right ^ round_key) & mask);
      left = swapped;
    }
    p = (left << half) | right;
  } while (p >= n);
  return p;
}

}  // namespace trainerd::io
