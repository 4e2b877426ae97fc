// Choices of cuBLASLt's algorithms as text. Host code: runs without CUDA.

#include "kernels/cuda/launch/gemm_choices.h"

#include <catch2/catch.hpp>
#include <limits>
#include <utility>

#include "kernels/base/error.h"

using namespace trainerd;
using namespace trainerd::kernels;
using cuda::GemmChoice;

namespace {

const std::string kHere = "cuBLASLt 13.0.2 on NVIDIA H200";

std::vector<GemmChoice> some() {
  return {{{.m = 4096,
            .n = 512,
            .k = 128,
            .transpose_a = true,
            .in = DType::bf16,
            .out = DType::bf16,
            .has_bias = true},
           {1, 0xFFFFFFFFFFFFFFFFull, 3, 4, 5, 6, 7, 0},
           std::int64_t{32} << 20},
          {{.m = 7, .n = 1, .k = 9, .transpose_b = true, .in = DType::bf16, .out = DType::f32, .has_c = true},
           {},
           0}};
}

}  // namespace

TEST_CASE("the fastest algorithm wins, the first one on ties, and slow ones are measured once",
          "[gemm_choices]") {
  std::vector<double> seconds{1.0, 0.9, 3.0, 1.3, 0.97};
  std::vector<int> calls(seconds.size(), 0);
  double slow = 1;  // clock factor in later turns
  const auto measure = [&](std::size_t i) {
    if (++calls[i] == 3) slow = 1.5;
    return slow * seconds[i];
  };
  const auto never = [] { return false; };
  CHECK(cuda::quickest_algorithm(seconds.size(), measure, never) == 1);
  // The limit is a quarter above the fastest, 1.125; the first algorithm always stays.
  CHECK(calls == std::vector<int>{5, 5, 1, 1, 5});
  const auto chosen = [&](std::vector<double> of) {
    return cuda::quickest_algorithm(
        of.size(), [of](std::size_t i) { return of[i]; }, never);
  };
  CHECK(chosen({1.0, 0.985}) == 0);
  CHECK(chosen({1.0, 0.975}) == 1);
  CHECK(chosen({9.0, 1.0, 1.1}) == 1);
  CHECK(chosen({1.0}) == 0);
  // An algorithm's best turn counts.
  int turn = 0;
  CHECK(cuda::quickest_algorithm(
            2, [&](std::size_t i) { return i == 0        ? 1.0
                                           : ++turn == 4 ? 0.5
                                                         : 1.1; }, never) == 1);
}

TEST_CASE("timing of algorithms passes over those that are refused, and ends when its time is over",
          "[gemm_choices]") {
  constexpr double kRefused = std::numeric_limits<double>::infinity();
  const auto chosen = [](std::vector<double> of, int most) {
    int calls = 0;
    return std::pair(
        cuda::quickest_algorithm(
            of.size(), [&](std::size_t i) { return ++calls, of[i]; }, [&] { return calls >= most; }),
        calls);
  };
  CHECK(chosen({kRefused, 2.0, 1.0}, 1000) == std::pair<std::size_t, int>(2, 7));
  CHECK(chosen({1.0, kRefused}, 1000) == std::pair<std::size_t, int>(0, 6));
  CHECK_THROWS_AS(chosen({kRefused, kRefused}, 1000), base::DeviceError);
  // At least one that is not refused is measured.
  CHECK(chosen({2.0, 1.0, 0.5}, 0) == std::pair<std::size_t, int>(0, 1));
  CHECK(chosen({kRefused, 1.0, 0.5}, 0) == std::pair<std::size_t, int>(1, 2));
  CHECK(chosen({2.0, 1.0, 0.5}, 2) == std::pair<std::size_t, int>(1, 2));
  CHECK(chosen({1.0, 1.1}, 5) == std::pair<std::size_t, int>(0, 5));
}

TEST_CASE("chosen GEMM algorithms survive a round trip through text", "[gemm_choices]") {
  CHECK(cuda::parse_choices(cuda::to_text(kHere, some()), kHere) == some());
  CHECK(cuda::parse_choices(cuda::to_text(kHere, {}), kHere).empty());
}

TEST_CASE("GEMM algorithms of another library or device, and broken ones, are refused with a remedy",
          "[gemm_choices]") {
  const std::string text = cuda::to_text(kHere, some());
  const auto refused = [](const std::string& broken, const std::string& here) {
    CHECK_THROWS_AS(cuda::parse_choices(broken, here), base::DeviceError);
    CHECK_THROWS_WITH(cuda::parse_choices(broken, here), Catch::Contains("remove gemm-algorithms.txt"));
  };
  refused(text, "cuBLASLt 13.1.0 on NVIDIA H200");
  refused("", kHere);
  refused(text.substr(0, text.size() - 3), kHere);  // the last word is missing
  refused(text + "1 2 3\n", kHere);
  std::string more = text;
  more.insert(more.size() - 1, " 8");
  refused(more, kHere);
  std::string negative = text;
  negative.replace(negative.find("4096"), 4, "-409");
  refused(negative, kHere);
}

TEST_CASE("a choice applies to its own product and alignment; others count as missed", "[gemm_choices]") {
  cuda::GemmChoices choices;
  const cuda::GemmProblem timed = some()[0].problem;
  CHECK(choices.find(timed) == nullptr);
  CHECK_FALSE(choices.missed(timed));  // none are in use
  choices.use(some());
  REQUIRE(choices.find(timed) != nullptr);
  CHECK(*choices.find(timed) == some()[0]);
  CHECK_FALSE(choices.missed(timed));
  cuda::GemmProblem unaligned = timed;
  unaligned.align_b = 64;
  cuda::GemmProblem longer = timed;
  longer.n = 513;
  for (const cuda::GemmProblem& other : {unaligned, longer}) {
    CHECK(choices.find(other) == nullptr);
    CHECK(choices.missed(other));
  }
  // Choices of one shape do not stay for the next.
  choices.use({some()[1]});
  CHECK(choices.find(timed) == nullptr);
  CHECK(choices.missed(timed));
  choices.use({});
  CHECK_FALSE(choices.missed(timed));
}

TEST_CASE("an operator's GEMM is the column-major product that runs it", "[gemm_choices]") {
  // fprop y[64, 48] = x[64, 32] w[48, 32]^T with a bias and an addend.
  OpClass fprop = gemm_class(GemmRole::fprop, DType::bf16, DType::bf16, 64, 48, 32);
  fprop.bias = fprop.adds = true;
  CHECK(cuda::problem_of(fprop) == cuda::GemmProblem{.m = 48,
                                                     .n = 64,
                                                     .k = 32,
                                                     .transpose_a = true,
                                                     .in = DType::bf16,
                                                     .out = DType::bf16,
                                                     .has_c = true,
                                                     .has_bias = true});
  // dgrad dx[64, 32] = dy[64, 48] w[48, 32].
  CHECK(cuda::problem_of(gemm_class(GemmRole::dgrad, DType::bf16, DType::bf16, 64, 32, 48)) ==
        cuda::GemmProblem{.m = 32, .n = 64, .k = 48, .in = DType::bf16, .out = DType::bf16});
  // wgrad dw[48, 32] += dy[64, 48]^T x[64, 32].
  OpClass wgrad = gemm_class(GemmRole::wgrad, DType::bf16, DType::f32, 48, 32, 64);
  wgrad.adds = true;
  CHECK(cuda::problem_of(wgrad) == cuda::GemmProblem{.m = 32,
                                                     .n = 48,
                                                     .k = 64,
                                                     .transpose_b = true,
                                                     .in = DType::bf16,
                                                     .out = DType::f32,
                                                     .has_c = true});
  // In FP8 the summed dimension is innermost in both operands, and a weight has scales of 128 x 128.
  CHECK(cuda::problem_of(gemm_class(GemmRole::dgrad, DType::bf16, DType::bf16, 64, 32, 48,
                                    GemmFormat::fp8)) == cuda::GemmProblem{.m = 32,
                                                                           .n = 64,
                                                                           .k = 48,
                                                                           .transpose_a = true,
                                                                           .in = DType::bf16,
                                                                           .out = DType::bf16,
                                                                           .format = GemmFormat::fp8,
                                                                           .weight = true});
  wgrad.format = GemmFormat::fp8;
  const cuda::GemmProblem in_fp8 = cuda::problem_of(wgrad);
  CHECK(in_fp8 == cuda::GemmProblem{.m = 32,
                                    .n = 48,
                                    .k = 64,
                                    .transpose_a = true,
                                    .in = DType::bf16,
                                    .out = DType::f32,
                                    .format = GemmFormat::fp8,
                                    .has_c = true});
  CHECK(cuda::describe(in_fp8) == "m 32, n 48, k 64, fp8 to fp32, A transposed, with C");
  // They are not timed, and not missed among those that are.
  cuda::GemmChoices choices;
  choices.use(some());
  CHECK_FALSE(choices.missed(in_fp8));
  wgrad.format = GemmFormat::plain;
  // The library cannot round fp32 products to bf16: the result is fp32, and is added separately.
  wgrad.dtype = DType::f32;
  wgrad.out = DType::bf16;
  CHECK(cuda::problem_of(wgrad) == cuda::GemmProblem{.m = 32, .n = 48, .k = 64, .transpose_b = true});
}
