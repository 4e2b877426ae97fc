// Launchers that are not operators but parts of the CUDA world's GEMMs.

#include "kernels/cuda/kernels/kernels.h"
#include "kernels/cuda/launch/partials.h"
#include "kernels/tensor/rng.h"
#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::WriteMode;

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
