#include "tests/kernels/gemm_cases.h"

namespace trainerd::test {
using namespace gemm_cases;

TEST_CASE("linear forward matches float64, with plain and packed weights, bias and addend", "[gemm]") {
  for (const DType dtype : kActivationDtypes)
    for (const Size size : kSizes) {
      const Case k(dtype, size);
      check_operator([&](Machine& m) { return run_fprop(m, k); });
    }
}

TEST_CASE("a product runs if its fastest implementation needs more workspace than available", "[gemm]") {
  // oneDNN's AMX kernel needs 2.4 MiB of workspace for a deep reduction to few columns.
  const Case k(DType::bf16, {33, 7, 32768});
  check_operator([&](Machine& m) { return run_fprop(m, k); });
}

TEST_CASE("linear input gradient matches float64, assigned and accumulated", "[gemm]") {
  for (const DType dtype : kActivationDtypes)
    for (const Size size : kSizes) {
      const Case k(dtype, size);
      check_operator([&](Machine& m) { return run_dgrad(m, k); });
    }
}

TEST_CASE("linear weight and bias gradients match float64 in both gradient dtypes", "[gemm]") {
  for (const DType dtype : kActivationDtypes)
    for (const DType gradient : kStateDtypes)
      for (const Size size : kSizes) {
        if (mixed(dtype, gradient)) continue;
        const Case k(dtype, size);
        check_operator([&](Machine& m) { return run_wgrad(m, k, gradient); });
      }
}

TEST_CASE("the fused SwiGLU GEMMs match the GEMM and the gate in float64", "[gemm]") {
  for (const DType dtype : kActivationDtypes)
    for (const Size size : {Size{7, 10, 9}, Size{200, 128, 64}})
      for (const bool prepared : {false, true}) {
        const Case k(dtype, size);
        check_operator([&](Machine& m) { return run_swiglu(m, k, prepared); });
        check_operator([&](Machine& m) { return run_dgrad_swiglu(m, k, prepared); });
      }
}

TEST_CASE("products in FP8 are those of operands rounded in blocks", "[gemm][fp8]") {
  if (!multiplies_fp8()) return;
  // A part of a block, whole blocks with a rest in every direction, and several.
  for (const Size size : {Size{16, 32, 48}, Size{144, 256, 272}, Size{304, 192, 64}}) {
    const Case k(DType::bf16, size, GemmFormat::fp8);
    check_operator([&](Machine& m) { return run_fprop(m, k); });
    check_operator([&](Machine& m) { return run_dgrad(m, k); });
    for (const DType gradient : kStateDtypes)
      check_operator([&](Machine& m) { return run_wgrad(m, k, gradient); });
    for (const bool prepared : {false, true}) {
      check_operator([&](Machine& m) { return run_swiglu(m, k, prepared); });
      check_operator([&](Machine& m) { return run_dgrad_swiglu(m, k, prepared); });
    }
  }
}

TEST_CASE("a weight gradient over no tokens is zero if assigned and adds nothing if accumulated", "[gemm]") {
  Machine m(kernels::Isa::portable, 1);
  const Tensor x = m.empty(DType::f32, {0, 4}), dy = m.empty(DType::f32, {0, 3});
  const Tensor dw = m.empty(DType::f32, {3, 4}), dbias = m.tensor(DType::f32, {3}, {1, 2, 3});
  m.backend().linear_wgrad(
      m.stream(), {.dy_TN = dy, .x_TC = x, .dweight_NC = dw, .dbias_N = {}, .mode = WriteMode::assign});
  CHECK(Machine::read(dw) == Values(12, 0.0));
  m.backend().linear_wgrad(m.stream(), {.dy_TN = dy, .x_TC = x, .dweight_NC = dw, .dbias_N = dbias});
  CHECK(Machine::read(dbias) == Values{1, 2, 3});
}

}  // namespace trainerd::test
