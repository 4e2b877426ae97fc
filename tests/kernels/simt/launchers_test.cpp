// Launchers that are not operators but parts of the CUDA world's GEMMs.

#include "kernels/cuda/kernels/kernels.h"
#include "kernels/cuda/launch/fp8_operand.h"
#include "kernels/cuda/launch/partials.h"
#include "kernels/tensor/rng.h"
#include "tests/kernels/gemm_cases.h"
#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::WriteMode;
using Blocks = kernels::cuda::RoundToFp8::Blocks;

double from_e4m3(double bits) {
  const int all = static_cast<int>(bits), rest = all & 0x7f;
  if (rest == 0x7f) return std::nan("");
  const double value = rest < 8 ? std::ldexp(rest, -9) : std::ldexp(8 + rest % 8, rest / 8 - 7 - 3);
  return all >= 0x80 ? -value : value;
}

/// The elements times their scales, in the order of x.
Values rounded_by_kernel(Machine& m, const Values& x, std::int64_t rows, std::int64_t columns,
                         Blocks blocks) {
  namespace cuda = kernels::cuda;
  const bool transposed = blocks == Blocks::columns_transposed || blocks == Blocks::squares_transposed,
             square = blocks == Blocks::squares || blocks == Blocks::squares_transposed;
  const std::int64_t outer = transposed ? columns : rows, k = transposed ? rows : columns;
  const Tensor in = m.tensor(DType::bf16, {rows, columns}, x), out = m.empty(DType::u8, {outer, k}),
               scales = m.empty(DType::f32,
                                {square ? cuda::square_scales(outer, k) : cuda::vector_scales(outer, k)});
  cuda::round_to_fp8({.target = m.backend().target()}, {.x_RC = in,
                                                        .out = reinterpret_cast<std::uint8_t*>(out.data),
                                                        .scales = reinterpret_cast<float*>(scales.data),
                                                        .blocks = blocks});
  const Values bits = Machine::read(out), factors = Machine::read(scales);
  Values found(x.size());
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t block = i / kernels::kFp8Block,
                         scale = square ? o / kernels::kFp8Block * cuda::square_stride(k) + block
                                        : block * outer + o;
      found[static_cast<std::size_t>(transposed ? i * columns + o : o * columns + i)] =
          from_e4m3(bits[static_cast<std::size_t>(o * k + i)]) * factors[static_cast<std::size_t>(scale)];
    }
  return found;
}

}  // namespace

TEST_CASE("column sums are those of every column, added or assigned", "[launchers]") {
  struct Size {
    std::int64_t rows, columns;
  };
  for (const DType dtype : kActivationDtypes)
    for (const Size s : {Size{1, 1}, Size{70, 37}, Size{33, 2064}, Size{0, 5}}) {
      const Values x = normal_values(s.rows * s.columns, 1, dtype),
                   before = normal_values(s.columns, 2, DType::bf16);
      Values sums(static_cast<std::size_t>(s.columns), 0.0);
      for (std::size_t i = 0; i < x.size(); ++i) sums[i % static_cast<std::size_t>(s.columns)] += x[i];
      check_operator([&](Machine& m) {
        const std::int64_t bytes = kernels::cuda::partial_bytes(s.rows, s.columns);
        const kernels::cuda::Launch launch{.target = m.backend().target(),
                                           .scratch = m.empty(DType::u8, {bytes}).data};
        const Tensor in = m.tensor(dtype, {s.rows, s.columns}, x), out = m.empty(DType::f32, {s.columns}),
                     added = m.tensor(DType::bf16, {s.columns}, before);
        kernels::cuda::column_sums(launch, {.x_TN = in, .out_N = out, .mode = WriteMode::assign});
        kernels::cuda::column_sums(launch, {.x_TN = in, .out_N = added, .mode = WriteMode::accumulate});
        return std::vector<Output>{{"assigned", out, sums, s.rows},
                                   {"added", added, sum(before, sums), s.rows}};
      });
    }
}

TEST_CASE("accumulate adds fp32 to bf16 and rounds once", "[launchers]") {
  for (const std::int64_t n : {1, 8, 1003}) {
    const Values x = normal_values(n, 3, DType::f32), before = normal_values(n, 4, DType::bf16);
    check_operator([&](Machine& m) {
      const kernels::cuda::Launch launch{.target = m.backend().target()};
      const Tensor in = m.tensor(DType::f32, {n}, x), out = m.empty(DType::bf16, {n}),
                   added = m.tensor(DType::bf16, {n}, before);
      kernels::cuda::accumulate(launch, {.x = in, .out = out, .mode = WriteMode::assign});
      kernels::cuda::accumulate(launch, {.x = in, .out = added, .mode = WriteMode::accumulate});
      return std::vector<Output>{{"assigned", out, x}, {"added", added, sum(before, x)}};
    });
  }
}

TEST_CASE("operands are rounded to FP8 in every form, with a scale for each block", "[launchers][fp8]") {
  struct Size {
    std::int64_t rows, columns;
  };
  for (const Size s : {Size{16, 16}, Size{144, 272}, Size{256, 128}, Size{0, 32}}) {
    Values x = normal_values(s.rows * s.columns, 1, DType::bf16);
    // Blocks of several magnitudes, one of zeros, and numbers far below the largest of their block.
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] *= std::ldexp(1, static_cast<int>(i * 7919 % 23) - static_cast<int>(i / 4096 % 5) * 20);
    for (std::size_t i = 0; i < std::min<std::size_t>(x.size(), 272); ++i) x[i] = 0;
    check_operator([&](Machine& m) {
      CHECK(rounded_by_kernel(m, x, s.rows, s.columns, Blocks::rows) ==
            gemm_cases::in_fp8(x, s.columns, 1, kernels::kFp8Block));
      CHECK(rounded_by_kernel(m, x, s.rows, s.columns, Blocks::columns_transposed) ==
            gemm_cases::in_fp8(x, s.columns, kernels::kFp8Block, 1));
      const Values squares = gemm_cases::in_fp8(x, s.columns, kernels::kFp8Block, kernels::kFp8Block);
      CHECK(rounded_by_kernel(m, x, s.rows, s.columns, Blocks::squares) == squares);
      CHECK(rounded_by_kernel(m, x, s.rows, s.columns, Blocks::squares_transposed) == squares);
      return std::vector<Output>{};
    });
  }
}

TEST_CASE("a block with an element that is not finite becomes NaN in FP8, and no other", "[launchers][fp8]") {
  for (const double element : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    Values x(256 * 256, 1.0);
    x[130 * 256 + 5] = element;
    check_operator([&](Machine& m) {
      for (const Blocks blocks :
           {Blocks::rows, Blocks::columns_transposed, Blocks::squares, Blocks::squares_transposed}) {
        const Values found = rounded_by_kernel(m, x, 256, 256, blocks);
        for (std::size_t i = 0; i < x.size(); ++i) {
          const std::size_t row = i / 256, column = i % 256;
          const bool in_rows = blocks == Blocks::rows ? row == 130 : row >= 128,
                     in_columns = blocks == Blocks::columns_transposed ? column == 5 : column < 128;
          if (in_rows && in_columns ? !std::isnan(found[i]) : found[i] != 1.0) {
            CAPTURE(row, column);
            FAIL_CHECK("element " << found[i]);
          }
        }
      }
      return std::vector<Output>{};
    });
  }
}

TEST_CASE("init_normal draws the CPU's numbers, and with the host's math functions the same bits",
          "[launchers]") {
  check_operator([](Machine& m) {
    const Tensor x = m.empty(DType::f32, {20, 11});
    m.backend().init_normal(m.stream(), {.x = x,
                                         .key = 0x123456789abcdefull,
                                         .stddev = 0.5f,
                                         .mean = 0.25f,
                                         .row = 1000000013,
                                         .column = 7,
                                         .rows = 20,
                                         .columns = 11,
                                         .logical_rows = 1000000030,
                                         .logical_columns = 15});
    Values expected;
    for (std::uint64_t r = 1000000013; r < 1000000033; ++r)
      for (std::uint64_t c = 7; c < 18; ++c)
        expected.push_back(r < 1000000030 && c < 15
                               ? 0.25f + 0.5f * kernels::normal_at(0x123456789abcdefull, r * 15 + c)
                               : 0.0f);
    CHECK(Machine::read(x) == expected);
    return std::vector<Output>{};
  });
}

}  // namespace trainerd::test
