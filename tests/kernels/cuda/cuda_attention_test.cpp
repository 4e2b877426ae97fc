// Attention of the library in bf16 against our own kernels in fp32. Both get the same bf16 inputs.

#include "kernels/backend/cuda_plugin.h"
#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

struct Case {
  kernels::HeadGeometry heads;
  std::int64_t sequences, tokens;  // per sequence
  kernels::Determinism determinism = kernels::Determinism::deterministic;
};

struct Results {
  Values out, lse, dqkv;
};

/// If given, the backward pass uses the bf16 output and log-sum-exp of `forward`, so that both backward
/// passes have the same inputs.
Results run(Machine& m, const Case& k, DType dtype, const Results* forward) {
  const std::int64_t T = k.sequences * k.tokens, W = k.heads.columns(), O = k.heads.heads * k.heads.head_size;
  std::vector<std::int32_t> bounds;
  for (std::int64_t b = 0; b <= k.sequences; ++b) bounds.push_back(static_cast<std::int32_t>(b * k.tokens));
  const Tensor qkv = m.tensor(dtype, {T, W}, normal_values(T * W, 1, DType::bf16)), cu = m.ids(bounds);
  const Tensor out = m.empty(dtype, {T, O}), lse = m.empty(DType::f32, {k.heads.heads, T}),
               dqkv = m.empty(dtype, {T, W});
  const float scale = 1.0f / std::sqrt(static_cast<float>(k.heads.head_size));
  const kernels::AttentionBlock block = kernels::whole_sequences(k.heads, scale, cu, k.tokens);
  m.backend().attention_forward(m.stream(), {.block = block,
                                             .q_THE = k.heads.queries_of(qkv),
                                             .k_TKE = k.heads.keys_of(qkv),
                                             .v_TKE = k.heads.values_of(qkv),
                                             .out_THE = k.heads.outputs_of(out),
                                             .lse_HT = lse});
  Results results{Machine::read(out), Machine::read(lse), {}};
  const Results& at = forward != nullptr ? *forward : results;
  const Tensor dout = m.tensor(dtype, {T, O}, normal_values(T * O, 2, DType::bf16));
  m.backend().attention_backward(m.stream(), {.block = block,
                                              .determinism = k.determinism,
                                              .q_THE = k.heads.queries_of(qkv),
                                              .k_TKE = k.heads.keys_of(qkv),
                                              .v_TKE = k.heads.values_of(qkv),
                                              .out_THE = k.heads.outputs_of(m.tensor(dtype, {T, O}, at.out)),
                                              .lse_HT = m.tensor(DType::f32, {k.heads.heads, T}, at.lse),
                                              .dout_THE = k.heads.outputs_of(dout),
                                              .dq_THE = k.heads.queries_of(dqkv),
                                              .dk_TKE = k.heads.keys_of(dqkv),
                                              .dv_TKE = k.heads.values_of(dqkv)});
  results.dqkv = Machine::read(dqkv);
  return results;
}

constexpr kernels::Determinism kBoth[] = {kernels::Determinism::deterministic, kernels::Determinism::fast};

}  // namespace

TEST_CASE("the library's attention agrees with our own in fp32", "[cuda][attention]") {
  if (kernels::open_cuda_plugin().describe(0).attention_library.empty()) {
    WARN("this build has no attention library: nothing to compare");
    return;
  }
  for (const kernels::Determinism determinism : kBoth)
    for (const Case& c : {Case{{4, 2, 128}, 3, 256}, Case{{4, 4, 64}, 2, 200}, Case{{6, 1, 128}, 1, 1024},
                          Case{{12, 2, 64}, 5, 96}}) {
      Case k = c;
      k.determinism = determinism;
      INFO(k.heads.heads << " heads of " << k.heads.head_size << ", " << k.sequences << " x " << k.tokens);
      Machine m(kernels::Isa::portable, 1);
      const auto before = m.backend().counters().own_attention;
      const Results bf16 = run(m, k, DType::bf16, nullptr);
      CHECK(m.backend().counters().own_attention == before);
      const Results fp32 = run(m, k, DType::f32, &bf16);
      CHECK(m.backend().counters().own_attention == before + 2);
      // Weights and gradients of scores are rounded to bf16 once before their product, and the result once
      // more.
      CHECK(scaled_error(bf16.lse, fp32.lse) <= tolerance(DType::f32, k.tokens));
      CHECK(scaled_error(bf16.out, fp32.out) <= 2 * tolerance(DType::bf16, k.tokens));
      CHECK(scaled_error(bf16.dqkv, fp32.dqkv) <= 4 * tolerance(DType::bf16, k.tokens));
      if (determinism == kernels::Determinism::deterministic) {
        const Results again = run(m, k, DType::bf16, nullptr);
        CHECK(again.out == bf16.out);
        CHECK(again.dqkv == bf16.dqkv);
      }
    }
}

}  // namespace trainerd::test
