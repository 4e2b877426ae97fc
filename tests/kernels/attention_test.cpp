#include "tests/kernels/attention_oracle.h"

namespace trainerd::test {
namespace {

void check_problem(const Problem& p, DType dtype) {
  const std::int64_t T = p.tokens(), E = p.heads.head_size, H = p.heads.heads, W = p.heads.columns();
  const Values qkv = normal_values(T * W, 1, dtype), dout = normal_values(T * H * E, 2, dtype);
  const Forward f = forward(p, qkv, dtype);
  // The backward pass is given what the forward stores: its output in the dtype, its log-sum-exp in fp32.
  const Values out = rounded(f.out.value, dtype), lse = rounded(f.lse.value, DType::f32);
  const Bounded dqkv = backward(p, qkv, out, lse, dout, dtype);
  for (const kernels::Isa isa : instruction_sets()) {
    std::vector<Values> first;
    for (const int threads : thread_counts(T + (dtype == DType::bf16))) {
      INFO(kernels::name_of(dtype) << " on " << kernels::to_string(isa) << " with " << threads
                                   << " threads, head " << E << ", " << p.lengths.size() << " sequences");
      Machine m(isa, threads);
      std::memset(m.scratch().base(), 0xff, static_cast<std::size_t>(m.scratch().capacity()));
      const Tensor x = m.tensor(dtype, {T, W}, qkv), bounds = m.ids(p.cu_seqlens());
      const Tensor y = m.empty(dtype, {T, H * E}), sums = m.empty(DType::f32, {H, T}),
                   dx = m.empty(dtype, {T, W});
      const kernels::AttentionBlock block = block_of(p, bounds);
      const std::optional<MatrixWork> before = matrix_work();
      m.backend().attention_forward(m.stream(), {.block = block,
                                                 .q_THE = p.heads.queries_of(x),
                                                 .k_TKE = p.heads.keys_of(x),
                                                 .v_TKE = p.heads.values_of(x),
                                                 .out_THE = p.heads.outputs_of(y),
                                                 .lse_HT = sums});
      check_bounded("out", y, f.out);
      check_bounded("lse", sums, f.lse);
      const std::optional<MatrixWork> between = matrix_work();
      m.backend().attention_backward(m.stream(),
                                     {.block = block,
                                      .q_THE = p.heads.queries_of(x),
                                      .k_TKE = p.heads.keys_of(x),
                                      .v_TKE = p.heads.values_of(x),
                                      .out_THE = p.heads.outputs_of(m.tensor(dtype, {T, H * E}, out)),
                                      .lse_HT = m.tensor(DType::f32, {H, T}, lse),
                                      .dout_THE = p.heads.outputs_of(m.tensor(dtype, {T, H * E}, dout)),
                                      .dq_THE = p.heads.queries_of(dx),
                                      .dk_TKE = p.heads.keys_of(dx),
                                      .dv_TKE = p.heads.values_of(dx)});
      check_bounded("dqkv", dx, dqkv);
      if (before) {
        const bool serves = dtype == DType::bf16 && E % 8 == 0 && E <= 128;
        CHECK((between->products > before->products) == serves);
        CHECK((matrix_work()->products > between->products) == serves);
        CHECK(matrix_work()->conflicts == before->conflicts);
      }
      CHECK(m.scratch().top() == 0);
      const std::vector<Values> now{Machine::read(y), Machine::read(sums), Machine::read(dx)};
      if (threads == 1) first = now;
      CHECK(now == first);
    }
  }
}

}  // namespace

TEST_CASE("the float64 attention gradient agrees with finite differences", "[attention]") {
  struct Kind {
    MaskKind mask;
    std::int64_t window;
    double softcap;
  };
  for (const auto& [mask, window, softcap] : {Kind{MaskKind::causal, 0, 0}, Kind{MaskKind::none, 0, 0},
                                              Kind{MaskKind::causal, 2, 0}, Kind{MaskKind::causal, 0, 0.7}}) {
    const Problem p{{.heads = 4, .kv_heads = 2, .head_size = 3}, {4, 1, 3}, mask, window, softcap};
    const std::int64_t T = p.tokens();
    const Values qkv = normal_values(T * p.heads.columns(), 3, DType::f64);
    const Values dout = normal_values(T * p.heads.heads * p.heads.head_size, 4, DType::f64);
    const Forward f = forward(p, qkv, DType::f64);
    const Bounded analytic = backward(p, qkv, f.out.value, f.lse.value, dout, DType::f64);
    const Values numeric = numeric_gradient(
        [&](const Values& x) { return dot(forward(p, x, DType::f64).out.value, dout); }, qkv);
    CHECK(scaled_error(analytic.value, numeric) < 1e-7);
  }
}

TEST_CASE("attention matches float64 for ragged sequences and grouped heads of any size", "[attention]") {
  const std::vector<Problem> problems{{{.heads = 4, .kv_heads = 2, .head_size = 8}, {1, 17, 64, 7}},
                                      {{.heads = 2, .kv_heads = 2, .head_size = 40}, {97, 30}},
                                      {{.heads = 3, .kv_heads = 1, .head_size = 64}, {100, 5, 129}},
                                      {{.heads = 2, .kv_heads = 1, .head_size = 128}, {70}},
                                      {{.heads = 4, .kv_heads = 2, .head_size = 128}, {150, 131}},
                                      {{.heads = 2, .kv_heads = 1, .head_size = 88}, {140}},
                                      {{.heads = 1, .kv_heads = 1, .head_size = 136}, {37}},
                                      {{.heads = 1, .kv_heads = 1, .head_size = 7}, {3, 0, 20}}};
  std::size_t turn = 0;
  for (Problem p : problems) {
    ++turn;  // one of the two pairs of dtype and mask; both in full runs
    for (const DType dtype : kActivationDtypes)
      for (const MaskKind mask : {MaskKind::causal, MaskKind::none}) {
        if (!runs_full() && (turn + (dtype == DType::bf16) + (mask == MaskKind::none)) % 2 != 0) continue;
        p.mask = mask;
        check_problem(p, dtype);
      }
  }
}

TEST_CASE("attention within a window matches float64", "[attention]") {
  for (const DType dtype : kActivationDtypes)
    for (const std::int64_t window : {1, 33}) {
      check_problem({{.heads = 4, .kv_heads = 2, .head_size = 16}, {140, 3, 61}, MaskKind::causal, window},
                    dtype);
      check_problem({{.heads = 2, .kv_heads = 1, .head_size = 7}, {40}, MaskKind::causal, window}, dtype);
    }
  for (const DType dtype : kActivationDtypes)
    check_problem({{.heads = 1, .kv_heads = 1, .head_size = 8}, {420}, MaskKind::causal, 130}, dtype);
}

TEST_CASE("attention under a softcap matches float64, with every mask", "[attention]") {
  std::size_t turn = 0;
  for (const auto& [mask, window] :
       {std::pair(MaskKind::causal, std::int64_t{0}), {MaskKind::none, 0}, {MaskKind::causal, 33}})
    // Small caps bend every score, large ones hardly any.
    for (const double softcap : {0.5, 50.0})
      for (const DType dtype : kActivationDtypes) {
        check_problem({{.heads = 2, .kv_heads = 1, .head_size = 16}, {90, 3, 41}, mask, window, softcap},
                      dtype);
        if (!runs_full() && ++turn % 4 != 0) continue;
        check_problem({{.heads = 2, .kv_heads = 1, .head_size = 128}, {50, 33}, mask, window, softcap},
                      dtype);
        check_problem({{.heads = 1, .kv_heads = 1, .head_size = 7}, {3, 0, 40}, mask, window, softcap},
                      dtype);
      }
}

TEST_CASE("attention over several blocks of keys matches float64", "[attention]") {
  for (const DType dtype : kActivationDtypes)
    for (const MaskKind mask : {MaskKind::causal, MaskKind::none})
      check_problem({{.heads = 2, .kv_heads = 1, .head_size = 16}, {530, 257}, mask}, dtype);
}

TEST_CASE("large scores neither overflow nor lose the largest", "[attention]") {
  const Problem p{{.heads = 1, .kv_heads = 1, .head_size = 8}, {300}, MaskKind::causal};
  for (const kernels::Isa isa : instruction_sets()) {
    Machine m(isa, 1);
    // Every score is 8 * 30 * 30: far above what exp holds; equal keys share the weight.
    const Tensor x = m.tensor(DType::f32, {300, 24}, Values(300 * 24, 30.0));
    const Tensor y = m.empty(DType::f32, {300, 8}), sums = m.empty(DType::f32, {1, 300});
    kernels::AttentionBlock block = block_of(p, m.ids({0, 300}));
    block.scale = 1.0f;
    m.backend().attention_forward(m.stream(), {.block = block,
                                               .q_THE = p.heads.queries_of(x),
                                               .k_TKE = p.heads.keys_of(x),
                                               .v_TKE = p.heads.values_of(x),
                                               .out_THE = p.heads.outputs_of(y),
                                               .lse_HT = sums});
    CHECK(scaled_error(Machine::read(y), Values(300 * 8, 30.0)) <= tolerance(DType::f32, 300));
    CHECK(Machine::read(sums)[299] == Approx(7200 + std::log(300.0)).epsilon(1e-6));
  }
}

}  // namespace trainerd::test
