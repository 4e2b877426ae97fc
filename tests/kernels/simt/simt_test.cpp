#include "tests/kernels/simt/simt_checks.h"

#include <catch2/catch.hpp>
#include <vector>

namespace trainerd::test {
namespace {

/// Threads write their neighbour's element and read their own, with or without a barrier between.
std::vector<unsigned> neighbours(simt::Order order, bool barrier) {
  simt::set_order(order);
  std::vector<unsigned> shared(64, 99u), seen(64);
  simt::run({1, 1, 1}, {64, 1, 1}, [&] {
    shared[(threadIdx.x + 1) % 64] = threadIdx.x;
    if (barrier) __syncthreads();
    seen[threadIdx.x] = shared[threadIdx.x];
  });
  return seen;
}

}  // namespace

TEST_CASE("a barrier hides the order of threads, and a missing one shows", "[simt]") {
  const std::vector<unsigned> with = neighbours(simt::Order::forward, true);
  for (unsigned i = 0; i < 64; ++i) CHECK(with[i] == (i + 63) % 64);
  for (const simt::Order order : kOrders) CHECK(neighbours(order, true) == with);
  CHECK(neighbours(simt::Order::forward, false) != neighbours(simt::Order::backward, false));
}

TEST_CASE("shuffles and matches give the values of the warp's lanes", "[simt]") {
  for (const simt::Order order : kOrders) {
    simt::set_order(order);
    std::vector<double> sum(96);
    std::vector<int> above(96);
    std::vector<unsigned> same(96), block(96);
    simt::run({1, 1, 1}, {96, 1, 1}, [&] {
      double x = threadIdx.x;
      for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
      sum[threadIdx.x] = x;
      above[threadIdx.x] = __shfl_up_sync(~0u, static_cast<int>(threadIdx.x), 2);
      same[threadIdx.x] = __match_any_sync(~0u, static_cast<int>(threadIdx.x % 3 == 0));
      block[threadIdx.x] = blockDim.x + blockIdx.x;
    });
    for (unsigned t = 0; t < 96; ++t) {
      const unsigned first = t / 32 * 32, lane = t % 32;
      CHECK(sum[t] == 32.0 * first + 31 * 16);
      CHECK(above[t] == static_cast<int>(lane < 2 ? t : t - 2));
      unsigned expected = 0;
      for (unsigned l = 0; l < 32; ++l)
        if (((first + l) % 3 == 0) == (t % 3 == 0)) expected |= 1u << l;
      CHECK(same[t] == expected);
      CHECK(block[t] == 96);
    }
  }
}

TEST_CASE("a barrier or shuffle that some threads never reach ends the run", "[simt]") {
  CHECK(ends(64, 0, [] {
    if (threadIdx.x != 5) __syncthreads();
  }));
  CHECK(ends(64, 0, [] {
    if (threadIdx.x != 40) __shfl_xor_sync(~0u, 1, 1);
  }));
  CHECK_FALSE(ends(64, 0, [] { __syncthreads(); }));
}

}  // namespace trainerd::test
