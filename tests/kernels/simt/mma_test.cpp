#include "kernels/cuda/kernels/tile_order.cuh"
#include "kernels/cuda/kernels/warp_group.cuh"

#include <catch2/catch.hpp>
#include <set>
#include <utility>

#include "kernels/tensor/dtype.h"
#include "kernels/tensor/fp8.h"
#include "tests/kernels/machine.h"
#include "tests/kernels/simt/simt_checks.h"

namespace trainerd::test {
namespace {

using namespace kernels::cuda;
using kernels::Bf16;
using kernels::Fp16;

template <class T>
std::vector<T> narrowed(const Values& x) {
  std::vector<T> result;
  for (const double v : x) result.push_back(kernels::rounded_to<T>(static_cast<float>(v)));
  return result;
}

}  // namespace

// A product of matrices in memory by the three instructions. The expected value does not depend on the layout
// of fragments.
TEMPLATE_TEST_CASE("copies, ldmatrix and mma multiply matrices in memory", "[simt][mma]", Bf16, Fp16) {
  using T = TestType;
  const DType dtype = kernels::DTypeOf<T>::value;
  const Values a = normal_values(16 * 16, 1, dtype), b = normal_values(16 * 8, 2, dtype);
  Values b_rows(16 * 16, 0.0), b_columns(16 * 16, 0.0);  // [k][n] and [n][k], each in 16 rows of 16
  for (std::size_t k = 0; k < 16; ++k)
    for (std::size_t n = 0; n < 8; ++n) b_rows[k * 16 + n] = b_columns[n * 16 + k] = b[k * 8 + n];
  for (const simt::Order order : kOrders)
    for (const bool transposed : {false, true}) {
      simt::set_order(order);
      // Aligned for 16-byte copies.
      alignas(16) T left[256], right[256];
      std::copy_n(narrowed<T>(a).begin(), 256, left);
      std::copy_n(narrowed<T>(transposed ? b_rows : b_columns).begin(), 256, right);
      std::vector<float> c(16 * 8);
      const simt::MatrixCounts before = simt::matrix_counts();
      simt::run(
          {1, 1, 1}, {32, 1, 1},
          [&] {
            const auto lane = static_cast<std::uint32_t>(simt::lane());
            copy_async_16(lane * 16, left + lane * 8, true);
            copy_async_16(512 + lane * 16, right + lane * 8, true);
            wait_copies();
            __syncwarp();
            std::uint32_t x[4], y[4];
            const std::uint32_t row = lane % 16 * 32 + lane / 16 * 16;
            load_matrices(x, row);
            if (transposed) load_matrices_transposed(y, 512 + row);
            else load_matrices(y, 512 + row);
            float sum[4] = {1, 2, 3, 4};
            multiply_add<T>(sum, x, y[0], transposed ? y[1] : y[2]);
            for (unsigned i = 0; i < 4; ++i)
              c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i] - static_cast<float>(i + 1);
          },
          1024);
      Values expected(16 * 8, 0.0);
      for (std::size_t m = 0; m < 16; ++m)
        for (std::size_t n = 0; n < 8; ++n)
          for (std::size_t k = 0; k < 16; ++k) expected[m * 8 + n] += a[m * 16 + k] * b[k * 8 + n];
      CHECK(scaled_error(Values(c.begin(), c.end()), expected) < 1e-6);
      const simt::MatrixCounts after = simt::matrix_counts();
      CHECK(after.products - before.products == 1);
      CHECK(after.loads - before.loads == 2);
      CHECK(after.copies - before.copies == 64);
      CHECK(after.conflicts - before.conflicts ==
            8);  // rows 32 bytes apart: rows r and r + 4 share banks, in each matrix
    }
}

TEST_CASE("a warp group's products of E4M3 numbers are those of their matrices", "[simt][mma][fp8]") {
  const Values a = normal_values(64 * 128, 5, DType::f32), b = normal_values(128 * 128, 6, DType::f32);
  std::vector<std::uint8_t> shared(192 * 128);
  // Rows of 128 bytes, whose chunk j is at place j xor (row mod 8): A, then B.
  const auto place = [&](const Values& x, std::size_t first) {
    Values numbers;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float number = kernels::round_to_e4m3(static_cast<float>(x[i]));
      const std::size_t row = first + i / 128, byte = i % 128;
      shared[row * 128 + ((byte / 16) ^ (row % 8)) * 16 + byte % 16] =
          static_cast<std::uint8_t>(kernels::e4m3_bits(number));
      numbers.push_back(number);
    }
    return numbers;
  };
  const Values a8 = place(a, 0), b8 = place(b, 64);
  std::vector<float> c(64 * 128);
  simt::set_order(simt::Order::forward);
  simt::run(
      {1, 1, 1}, {128, 1, 1},
      [&] {
        const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
        for (std::size_t chunk = thread; chunk < shared.size() / 16; chunk += 128)
          copy_async_16(static_cast<SharedAddress>(chunk * 16), shared.data() + chunk * 16, true);
        wait_copies();
        show_shared_to_groups();
        __syncthreads();
        float sums[16][4];
        begin_group_products();
        for (unsigned k = 0; k < 128; k += 32) multiply_group_e4m3(sums, k, 64 * 128 + k, k > 0);
        end_group_products();
        wait_group_products(sums);
        for (unsigned n = 0; n < 16; ++n)
          for (unsigned i = 0; i < 4; ++i)
            c[(warp * 16 + lane / 4 + i / 2 * 8) * 128 + n * 8 + lane % 4 * 2 + i % 2] = sums[n][i];
      },
      shared.size());
  Values expected(64 * 128, 0.0);
  for (std::size_t m = 0; m < 64; ++m)
    for (std::size_t n = 0; n < 128; ++n)
      for (std::size_t k = 0; k < 128; ++k) expected[m * 128 + n] += a8[m * 128 + k] * b8[n * 128 + k];
  CHECK(scaled_error(Values(c.begin(), c.end()), expected) < 1e-6);
}

TEMPLATE_TEST_CASE("a warp group's products of matrices are theirs in both orders of each operand",
                   "[simt][mma]", Bf16, Fp16) {
  using T = TestType;
  const DType dtype = kernels::DTypeOf<T>::value;
  const bool a_deep = GENERATE(true, false), b_deep = GENERATE(true, false);
  constexpr std::size_t kDepth = 64, kRows = 64, kColumns = 256, kBytes = (kRows + kColumns) * kDepth * 2;
  const Values a = normal_values(kRows * kDepth, 5, dtype), b = normal_values(kColumns * kDepth, 6, dtype);
  std::vector<T> shared(kBytes / 2);
  // Rows of 128 bytes, whose chunk j is at place j xor (row mod 8): one of outputs with 64 summands if
  // `deep`, else one summand of 64 outputs, for each 64 outputs.
  const auto place = [&](const Values& x, bool deep, std::size_t first) {
    const std::vector<T> narrow = narrowed<T>(x);
    for (std::size_t outer = 0; outer < x.size() / kDepth; ++outer)
      for (std::size_t k = 0; k < kDepth; ++k) {
        const std::size_t row = first + (deep ? outer : outer / 64 * 64 + k), i = deep ? k : outer % 64;
        shared[row * 64 + ((i / 8) ^ (row % 8)) * 8 + i % 8] = narrow[outer * kDepth + k];
      }
  };
  place(a, a_deep, 0);
  place(b, b_deep, kRows);
  std::vector<float> c(kRows * kColumns);
  const auto multiply = [&](auto in_a, auto in_b, float(&sums)[32][4]) {
    constexpr bool kA = decltype(in_a)::value, kB = decltype(in_b)::value;
    for (unsigned k = 0; k < 4; ++k)
      multiply_group<T, kA, kB>(sums, k * (kA ? 32 : 2048), kRows * 128 + k * (kB ? 32 : 2048));
  };
  simt::set_order(simt::Order::shuffled);
  simt::run(
      {1, 1, 1}, {128, 1, 1},
      [&] {
        const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
        for (std::size_t chunk = thread; chunk < kBytes / 16; chunk += 128)
          copy_async_16(static_cast<SharedAddress>(chunk * 16), shared.data() + chunk * 8, true);
        group_copies();
        wait_copies_but<0>();
        show_shared_to_groups();
        __syncthreads();
        float sums[32][4];
        for (auto& of_columns : sums)
          for (float& sum : of_columns) sum = 1;
        begin_group_products();
        if (a_deep && b_deep) multiply(std::true_type{}, std::true_type{}, sums);
        else if (a_deep) multiply(std::true_type{}, std::false_type{}, sums);
        else if (b_deep) multiply(std::false_type{}, std::true_type{}, sums);
        else multiply(std::false_type{}, std::false_type{}, sums);
        end_group_products();
        wait_group_products(sums);
        for (unsigned n = 0; n < 32; ++n)
          for (unsigned i = 0; i < 4; ++i)
            c[(warp * 16 + lane / 4 + i / 2 * 8) * kColumns + n * 8 + lane % 4 * 2 + i % 2] = sums[n][i];
      },
      kBytes);
  Values expected(kRows * kColumns, 1.0);
  for (std::size_t m = 0; m < kRows; ++m)
    for (std::size_t n = 0; n < kColumns; ++n)
      for (std::size_t k = 0; k < kDepth; ++k)
        expected[m * kColumns + n] += a[m * kDepth + k] * b[n * kDepth + k];
  CHECK(scaled_error(Values(c.begin(), c.end()), expected) < 1e-6);
}

TEST_CASE(
    "tiles of weight gradients each have one place, and those that run at once are few rows and columns",
    "[simt]") {
  for (const int rows : {1, 11, 12, 13, 24, 29})
    for (const int columns : {1, 2, 28}) {
      std::set<std::pair<int, int>> seen;
      for (int i = 0; i < rows * columns; ++i) {
        const TilePlace place = place_of_tile(i, rows, columns);
        CHECK((place.row >= 0 && place.row < rows && place.column >= 0 && place.column < columns));
        seen.insert({place.row, place.column});
      }
      CHECK(seen.size() == static_cast<std::size_t>(rows * columns));
    }
  std::set<int> rows, columns;
  for (int i = 0; i < 132; ++i) {
    rows.insert(place_of_tile(i, 32, 28).row);
    columns.insert(place_of_tile(i, 32, 28).column);
  }
  CHECK((rows.size() == 12 && columns.size() == 11));
}

TEST_CASE("an asynchronous copy arrives when its thread has waited, not before, and is zero if not valid",
          "[simt][mma]") {
  alignas(16) const float source[4] = {1, 2, 3, 4};
  simt::set_order(simt::Order::forward);
  simt::run(
      {1, 1, 1}, {1, 1, 1},
      [&] {
        float early[2], late[2], four[2], zero[2];
        copy_async_16(0, source, true);
        copy_async_4(16, source + 1, true);
        copy_async_4(20, source, false);
        copy_async_16(32, source, false);
        load_shared(0, early);
        wait_copies();
        load_shared(0, late);
        load_shared(16, four);
        load_shared(40, zero);
        CHECK(std::isnan(early[0]));
        CHECK((late[0] == 1 && late[1] == 2));
        CHECK((four[0] == 2 && four[1] == 0));
        CHECK((zero[0] == 0 && zero[1] == 0));
      },
      64);
}

TEST_CASE("a wrong use of the matrix instructions ends the run", "[simt][mma]") {
  std::uint32_t x[4];
  CHECK(ends(32, 1024, [&] { load_matrices(x, 2048); }));  // outside of shared memory
  CHECK(ends(32, 1024, [&] { load_matrices(x, 8); }));     // not aligned
  CHECK(ends(32, 1024,
             [&] { copy_async_16(0, reinterpret_cast<const void*>(8), true); }));  // source not aligned
  alignas(16) static const float source[4] = {};
  CHECK(ends(32, 1024, [&] { copy_async_16(0, source, true); }));  // no thread waits
  static float sums[128][32][4] = {};                              // by thread
  struct Product {
    SharedAddress from = 32;
    bool shown = true, begun = true, overwritten = false, waits = true;
  };
  const auto product = [&](const Product& p) {
    copy_async_16(0, source, true);
    wait_copies();
    if (p.shown) show_shared_to_groups();
    __syncthreads();
    if (p.begun) begin_group_products();
    multiply_group<Bf16, true, true>(sums[threadIdx.x], p.from, 0);
    end_group_products();
    if (p.overwritten) store_shared(32, 1);
    if (p.waits) wait_group_products(sums[threadIdx.x]);
  };
  constexpr unsigned kBytes = 256 * 128;
  CHECK_FALSE(ends(32, kBytes, [&] { product({}); }));
  CHECK(ends(32, kBytes, [&] { product({.shown = false}); }));
  CHECK(ends(32, kBytes, [&] { product({.begun = false}); }));
  CHECK(ends(32, kBytes, [&] { product({.overwritten = true}); }));
  CHECK(ends(32, kBytes, [&] { product({.waits = false}); }));
  CHECK(ends(32, kBytes, [&] { product({.from = 128}); }));                     // not within the first row
  CHECK(ends(32, kBytes, [&] { product({.from = threadIdx.x / 16 * 32}); }));   // not one product of a warp
  CHECK(ends(128, kBytes, [&] { product({.from = threadIdx.x / 64 * 32}); }));  // and of a group
  CHECK(ends(32, 1024, [&] {
    if (threadIdx.x == 3) return;
    load_matrices(x, 0);
  }));
  CHECK(ends(32, 1024, [&] {
    if (threadIdx.x == 3) load_matrices_transposed(x, 0);
    else load_matrices(x, 0);
  }));
  CHECK_FALSE(ends(32, 1024, [&] {
    load_matrices(x, 0);
    copy_async_16(0, source, true);
    wait_copies();
  }));
}

}  // namespace trainerd::test
