// Detection of the instruction set, and products on a machine without AVX-512.

#include <unistd.h>

#include <array>
#include <cstdlib>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm_cache.h"
#include "kernels/cpu/tiling/gemm.h"
#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::Isa;

/// Runs the hidden cases with `tag` in a process of this binary with oneDNN limited to `isa`. Returns its
/// status.
int status_with_library(const std::string& isa, const std::string& tag) {
  const std::string self = "/proc/" + std::to_string(::getpid()) + "/exe";
  return std::system(("ONEDNN_MAX_CPU_ISA=" + isa + " " + self + " '[" + tag + "]' >&2").c_str());
}

/// y and dx with a prepared weight (if the form exists) and with the plain one, and dw, for sizes [T, N, C].
std::vector<Values> every_product(Machine& m, DType dtype, const std::array<std::int64_t, 3>& size,
                                  const Values& x_values, const Values& w_values) {
  using kernels::GemmRole;
  const auto [T, N, C] = size;
  kernels::Backend& b = m.backend();
  const Tensor x = m.tensor(dtype, {T, C}, x_values), plain = m.tensor(dtype, {N, C}, w_values);
  const Tensor y[2] = {m.empty(dtype, {T, N}), m.empty(dtype, {T, N})},
               dx[2] = {m.empty(dtype, {T, C}), m.empty(dtype, {T, C})};
  const Tensor dw = m.empty(DType::f32, {N, C});
  const auto weight = [&](GemmRole role) {
    kernels::PrepareWeight p{.plain_NC = plain, .role = role, .tokens = 2048, .out = {}};
    kernels::Weight w{plain, {}};
    if (const std::int64_t bytes = b.prepared_bytes(p); bytes > 0) {
      p.out = w.prepared = m.empty(DType::u8, {bytes});
      b.prepare_weight(m.stream(), p);
    }
    CHECK(w.prepared.defined() == (dtype == DType::f32 && b.target().isa == Isa::avx2));
    return w;
  };
  b.linear_fprop(m.stream(),
                 {.x_TC = x, .weight = weight(GemmRole::fprop), .bias_N = {}, .addend_TN = {}, .y_TN = y[0]});
  b.linear_fprop(m.stream(), {.x_TC = x, .weight = {plain, {}}, .bias_N = {}, .addend_TN = {}, .y_TN = y[1]});
  b.linear_dgrad(m.stream(), {.dy_TN = y[0], .weight = weight(GemmRole::dgrad), .dx_TC = dx[0]});
  b.linear_dgrad(m.stream(), {.dy_TN = y[0], .weight = {plain, {}}, .dx_TC = dx[1]});
  b.linear_wgrad(
      m.stream(),
      {.dy_TN = y[0], .x_TC = x, .dweight_NC = dw, .dbias_N = {}, .mode = kernels::WriteMode::assign});
  return {Machine::read(y[0]), Machine::read(y[1]), Machine::read(dx[0]), Machine::read(dx[1]),
          Machine::read(dw)};
}

}  // namespace

TEST_CASE("the name of an instruction set is one word and parses back", "[isa]") {
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16}) {
    Isa found{};
    CHECK(kernels::parse_isa(kernels::to_string(isa), found));
    CHECK(found == isa);
  }
  Isa found = Isa::avx2;
  CHECK_FALSE(kernels::parse_isa("avx", found));
  CHECK(found == Isa::avx2);
}

TEST_CASE("detection returns at most the requested set, and only the best has bf16 products", "[isa]") {
  for (const Isa isa : instruction_sets()) {
    const kernels::Target target = kernels::detect_cpu(1, isa);
    CHECK(target.isa == isa);
    if (isa != Isa::avx512_bf16) CHECK_FALSE(target.bf16_gemm);
  }
}

TEST_CASE("kernels that the CPU does not have are refused", "[isa]") {
  base::ThreadPool pool(1);
  kernels::Target target = kernels::detect_cpu(1);
  if (target.isa == Isa::avx512_bf16) return;
  target.isa = Isa::avx512_bf16;
  CHECK_THROWS_AS(kernels::CpuBackend(target, pool), base::DeviceError);
}

TEST_CASE("with oneDNN limited to AVX2 no product runs its reference implementation", "[isa]") {
  if (kernels::detect_cpu(1).isa == Isa::portable) return;
  CHECK(status_with_library("AVX2", ".avx2-alone") == 0);
}

TEST_CASE("in a process with only AVX2 GEMMs are right, and none is the reference implementation",
          "[.avx2-alone]") {
  REQUIRE(kernels::detect_cpu(1).isa == Isa::avx2);
  base::ThreadPool pool(1);
  kernels::Target better = kernels::detect_cpu(1);
  better.isa = Isa::avx512;
  CHECK_THROWS_AS(kernels::CpuBackend(better, pool), base::DeviceError);
  // This form has no AVX2 kernel in oneDNN.
  kernels::GemmKey packed;
  packed.m = 256, packed.n = 64, packed.k = packed.lda = 96;
  packed.right = kernels::GemmKey::Right::prepared;
  CHECK(kernels::GemmCache(kernels::detect_cpu(1)).get(packed).is_reference());

  constexpr std::int64_t T = 200, N = 128, C = 64;
  for (const DType dtype : kActivationDtypes) {
    const Values x = normal_values(T * C, 1, dtype), w = normal_values(N * C, 2, dtype);
    Values expected(static_cast<std::size_t>(T * N), 0.0);
    for (std::int64_t t = 0; t < T; ++t)
      for (std::int64_t n = 0; n < N; ++n)
        for (std::int64_t c = 0; c < C; ++c)
          expected[static_cast<std::size_t>(t * N + n)] +=
              x[static_cast<std::size_t>(t * C + c)] * w[static_cast<std::size_t>(n * C + c)];
    for (const Isa isa : instruction_sets()) {
      std::vector<Values> first;
      for (const int threads : {1, 2, 3}) {
        INFO(kernels::name_of(dtype) << " on " << kernels::to_string(isa) << " with " << threads
                                     << " threads");
        Machine m(isa, threads);
        const std::vector<Values> results = every_product(m, dtype, {T, N, C}, x, w);
        CHECK(scaled_error(results[0], expected) <= tolerance(dtype, C));
        CHECK(scaled_error(results[1], expected) <= tolerance(dtype, C));
        if (threads == 1) first = results;
        CHECK(results == first);
        CHECK(m.backend().counters().reference_gemms == 0);
        CHECK(m.backend().counters().widened_gemms == (dtype == DType::f32 ? 0 : 5));
      }
    }
  }
}

}  // namespace trainerd::test
