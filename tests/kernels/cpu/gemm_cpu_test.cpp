// GEMMs on the CPU: widening to other types and instruction sets.

#include "tests/kernels/gemm_cases.h"

namespace trainerd::test {
using namespace gemm_cases;

TEST_CASE("without bf16 instructions bf16 GEMMs are computed in fp32, rounded once and counted", "[gemm]") {
  for (const kernels::Isa isa : instruction_sets())
    for (const int threads : {1, 2})
      for (const Size size : {Size{7, 34, 65}, Size{300, 200, 64}}) {
        const Case k(DType::bf16, size);
        Machine m(isa, threads, false);
        std::vector<Output> outputs;
        for (auto& part :
             {run_fprop(m, k), run_dgrad(m, k), run_wgrad(m, k, DType::f32), run_wgrad(m, k, DType::bf16),
              run_swiglu(m, k, true), run_dgrad_swiglu(m, k, true)})
          outputs.insert(outputs.end(), part.begin(), part.end());
        CHECK(m.backend().counters().widened_gemms == 5 + 3 + 2 + 2 + 1 + 3);
        for (const Output& output : outputs) {
          INFO(output.name << " on " << kernels::to_string(isa) << " with " << threads << " threads");
          CHECK(scaled_error(Machine::read(output.actual), output.reference) <=
                tolerance(output.actual.dtype, output.length));
        }
      }
}

TEST_CASE("fp32 GEMMs are never counted as widened", "[gemm]") {
  Machine m(kernels::Isa::portable, 1, false);
  run_fprop(m, Case(DType::f32, {7, 33, 65}));
  CHECK(m.backend().counters().widened_gemms == 0);
}

TEST_CASE("a weight that does not fill whole panels has no prepared form", "[gemm]") {
  kernels::Target target;
  target.isa = kernels::Isa::avx512_bf16;
  target.bf16_gemm = true;
  const auto bytes = [&](std::int64_t n, std::int64_t c, DType dtype, GemmRole role) {
    return kernels::prepared_bytes(
        {.plain_NC = {nullptr, dtype, {n, c}}, .role = role, .tokens = 2048, .out = {}}, target);
  };
  CHECK(bytes(1152, 384, DType::bf16, GemmRole::fprop) == 1152 * 384 * 2);
  CHECK(bytes(1152, 384, DType::f32, GemmRole::dgrad) == 1152 * 384 * 4);
  CHECK(bytes(1000, 384, DType::bf16, GemmRole::fprop) == 0);
  CHECK(bytes(1152, 384, DType::bf16, GemmRole::wgrad) == 0);
  target.bf16_gemm = false;
  CHECK(bytes(1152, 384, DType::bf16, GemmRole::fprop) == 0);
  target.isa = kernels::Isa::avx2;
  CHECK(bytes(1152, 384, DType::bf16, GemmRole::fprop) == 0);
  CHECK(bytes(1152, 384, DType::f32, GemmRole::fprop) == 1152 * 384 * 4);
  target.isa = kernels::Isa::portable;
  CHECK(bytes(1152, 384, DType::f32, GemmRole::fprop) == 0);
}

}  // namespace trainerd::test
