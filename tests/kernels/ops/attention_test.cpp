#include "tests/kernels/attention_oracle.h"

namespace trainerd::test {
namespace {

/// CI checks one of six problems in a run.
void check_problem(const Problem& p, DType dtype) {
  static std::size_t turn = 0;
  if (!in_slice(turn++, 6)) return;
  const std::int64_t T = p.tokens(), E = p.heads.head_size, V = p.heads.values_size(), H = p.heads.heads,
                     W = p.heads.columns();
  const Values qkv = normal_values(T * W, 1, dtype), dout = normal_values(T * H * V, 2, dtype);
  const Forward f = forward(p, qkv, dtype);
  // The backward pass gets the stored results of the forward pass: output in the dtype, log-sum-exp in fp32.
  const Values out = rounded(f.out.value, dtype), lse = rounded(f.lse.value, DType::f32);
  const Bounded dqkv = backward(p, qkv, out, lse, dout, dtype);
  for (const kernels::Isa isa : instruction_sets()) {
    std::vector<Values> first;
    for (const int threads : thread_counts(T + (dtype == DType::bf16))) {
      INFO(kernels::name_of(dtype) << " on " << kernels::to_string(isa) << " with " << threads
                                   << " threads, head " << E << ", " << p.lengths.size() << " sequences");
      Machine m(isa, threads);
      m.spoil_scratch();
      const Tensor x = m.tensor(dtype, {T, W}, qkv), bounds = m.ids(p.cu_seqlens());
      const Tensor y = m.empty(dtype, {T, H * V}), sums = m.empty(DType::f32, {H, T}),
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
                                      .out_THE = p.heads.outputs_of(m.tensor(dtype, {T, H * V}, out)),
                                      .lse_HT = m.tensor(DType::f32, {H, T}, lse),
                                      .dout_THE = p.heads.outputs_of(m.tensor(dtype, {T, H * V}, dout)),
                                      .dq_THE = p.heads.queries_of(dx),
                                      .dk_TKE = p.heads.keys_of(dx),
                                      .dv_TKE = p.heads.values_of(dx)});
      check_bounded("dqkv", dx, dqkv);
      if (before) {
        const bool serves = dtype != DType::f32 && E % 8 == 0 && E <= 128 && V % 8 == 0 && V <= 128;
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
    const std::int64_t value_size = softcap > 0 ? 2 : window > 0 ? 5 : 0;
    const Problem p{{.heads = 4, .kv_heads = 2, .head_size = 3, .value_size = value_size},
                    {4, 1, 3},
                    mask,
                    window,
                    softcap};
    const std::int64_t T = p.tokens();
    const Values qkv = normal_values(T * p.heads.columns(), 3, DType::f64);
    const Values dout = normal_values(T * p.heads.output_columns(), 4, DType::f64);
    const Forward f = forward(p, qkv, DType::f64);
    const Bounded analytic = backward(p, qkv, f.out.value, f.lse.value, dout, DType::f64);
    const Values numeric = numeric_gradient(
        [&](const Values& x) { return dot(forward(p, x, DType::f64).out.value, dout); }, qkv);
    CHECK(scaled_error(analytic.value, numeric) < 1e-7);
  }
}

TEST_CASE("attention matches float64 for ragged sequences and grouped heads of any size", "[attention]") {
  const std::vector<Problem> problems{
      {{.heads = 4, .kv_heads = 2, .head_size = 8}, {1, 17, 64, 7}},
      {{.heads = 2, .kv_heads = 2, .head_size = 40}, {97, 30}},
      {{.heads = 3, .kv_heads = 1, .head_size = 64}, {100, 5, 129}},
      {{.heads = 2, .kv_heads = 1, .head_size = 128}, {70}},
      {{.heads = 4, .kv_heads = 2, .head_size = 128}, {150, 131}},
      {{.heads = 2, .kv_heads = 1, .head_size = 88}, {140}},
      {{.heads = 1, .kv_heads = 1, .head_size = 136}, {37}},
      {{.heads = 1, .kv_heads = 1, .head_size = 7}, {3, 0, 20}},
      // Value heads of another size.
      {{.heads = 2, .kv_heads = 2, .head_size = 24, .value_size = 16}, {70, 35}},
      {{.heads = 4, .kv_heads = 2, .head_size = 40, .value_size = 72}, {33, 90}},
      {{.heads = 1, .kv_heads = 1, .head_size = 192, .value_size = 128}, {41}},
      {{.heads = 2, .kv_heads = 1, .head_size = 6, .value_size = 9}, {30, 5}}};
  std::size_t turn = 0;
  for (Problem p : problems) {
    ++turn;  // one of the six pairs of dtype and mask, each in turn; all in full runs
    std::size_t pair = 0;
    for (const DType dtype : kActivationDtypes)
      for (const MaskKind mask : {MaskKind::causal, MaskKind::none}) {
        if ((turn + pair++) % 6 != 0 && !runs_full()) continue;
        p.mask = mask;
        check_problem(p, dtype);
      }
  }
}

TEST_CASE("attention within a window matches float64", "[attention]") {
  for (const DType dtype : kActivationDtypes)
    for (const std::int64_t window : {1, 33}) {
      if (!runs_full() && (dtype == DType::bf16) != (window == 33)) continue;
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
    // Small caps change every score, large ones hardly any.
    for (const double softcap : {0.5, 50.0})
      for (const DType dtype : kActivationDtypes) {
        const std::size_t pair =
            turn++ / 3;  // of mask and cap: in bf16 or in the others, in all in full runs
        if (!runs_full() && (dtype == DType::bf16) != ((pair + pair / 2) % 2 == 0)) continue;
        check_problem({{.heads = 2, .kv_heads = 1, .head_size = 16}, {90, 3, 41}, mask, window, softcap},
                      dtype);
        if (!runs_full() && pair % 2 != 0) continue;
        check_problem({{.heads = 2, .kv_heads = 1, .head_size = 128}, {50, 33}, mask, window, softcap},
                      dtype);
        check_problem({{.heads = 1, .kv_heads = 1, .head_size = 7}, {3, 0, 40}, mask, window, softcap},
                      dtype);
      }
}

TEST_CASE("attention over several blocks of keys matches float64", "[attention]") {
  for (const DType dtype : kActivationDtypes)
    for (const MaskKind mask : {MaskKind::causal, MaskKind::none})
      if (runs_full() || (dtype == DType::bf16) == (mask == MaskKind::causal))
        check_problem({{.heads = 2, .kv_heads = 1, .head_size = 16}, {530, 257}, mask}, dtype);
}

namespace {

/// out [T, H E] of attention with a sink beside each head's keys, from its definition.
Values attend_with_sinks(const Problem& p, const Values& qkv, const Values& sinks) {
  const std::int64_t T = p.tokens(), E = p.heads.head_size, H = p.heads.heads, W = p.heads.columns();
  Values out(static_cast<std::size_t>(T * H * E), 0.0), sum(static_cast<std::size_t>(H * T));
  for (std::int64_t i = 0; i < H * T; ++i) at(sum, i) = std::exp(at(sinks, i / T));
  for_each_pair(p, [&](std::int64_t q, std::int64_t k, std::int64_t head, std::int64_t kv) {
    at(sum, head * T + q) += std::exp(score(p, qkv, q, k, head, kv).value);
  });
  for_each_pair(p, [&](std::int64_t q, std::int64_t k, std::int64_t head, std::int64_t kv) {
    const double prob = std::exp(score(p, qkv, q, k, head, kv).value) / at(sum, head * T + q);
    for (std::int64_t e = 0; e < E; ++e)
      at(out, (q * H + head) * E + e) += prob * at(qkv, k * W + v_column(p, kv) + e);
  });
  return out;
}

}  // namespace

TEST_CASE("attention with sinks matches its definition and its finite differences", "[attention]") {
  const Problem p{{.heads = 4, .kv_heads = 2, .head_size = 3}, {4, 1, 6}, MaskKind::causal, 4};
  const std::int64_t T = p.tokens(), E = p.heads.head_size, H = p.heads.heads, W = p.heads.columns();
  const Values qkv = normal_values(T * W, 21, DType::f32), dout = normal_values(T * H * E, 22, DType::f32),
               before = normal_values(H, 24, DType::f32);
  // One sink takes nearly all of the weight, one nearly none.
  const Values sinks = rounded({0.3, -1.2, 9.0, -30.0}, DType::f32);
  const auto loss = [&](const Values& x, const Values& s) { return dot(attend_with_sinks(p, x, s), dout); };
  const Values out = attend_with_sinks(p, qkv, sinks),
               dqkv = numeric_gradient([&](const Values&x) { return loss(x, sinks); }, qkv),
               dsinks = numeric_gradient([&](const Values&s) { return loss(qkv, s); }, sinks);
  check_operator([&](Machine& m) {
    const Tensor x = m.tensor(DType::f32, {T, W}, qkv), y = m.empty(DType::f32, {T, H * E}),
                 lse = m.empty(DType::f32, {H, T}), of_out = m.tensor(DType::f32, {T, H * E}, dout),
                 dx = m.empty(DType::f32, {T, W}), s = m.tensor(DType::f32, {H}, sinks),
                 ds = m.empty(DType::f32, {H}), added = m.tensor(DType::f32, {H}, before);
    const kernels::AttentionBlock block = block_of(p, m.ids(p.cu_seqlens()));
    m.backend().attention_forward(m.stream(), {.block = block,
                                               .q_THE = p.heads.queries_of(x),
                                               .k_TKE = p.heads.keys_of(x),
                                               .v_TKE = p.heads.values_of(x),
                                               .out_THE = p.heads.outputs_of(y),
                                               .lse_HT = lse});
    m.backend().attention_sink_forward(m.stream(),
                                       {.out_THE = p.heads.outputs_of(y), .lse_HT = lse, .sinks_H = s});
    m.backend().attention_backward(m.stream(), {.block = block,
                                                .q_THE = p.heads.queries_of(x),
                                                .k_TKE = p.heads.keys_of(x),
                                                .v_TKE = p.heads.values_of(x),
                                                .out_THE = p.heads.outputs_of(y),
                                                .lse_HT = lse,
                                                .dout_THE = p.heads.outputs_of(of_out),
                                                .dq_THE = p.heads.queries_of(dx),
                                                .dk_TKE = p.heads.keys_of(dx),
                                                .dv_TKE = p.heads.values_of(dx)});
    kernels::AttentionSinkBackward sink{.out_THE = p.heads.outputs_of(y),
                                        .dout_THE = p.heads.outputs_of(of_out),
                                        .lse_HT = lse,
                                        .sinks_H = s,
                                        .dsinks_H = ds,
                                        .mode = kernels::WriteMode::assign};
    m.backend().attention_sink_backward(m.stream(), sink);
    sink.dsinks_H = added, sink.mode = kernels::WriteMode::accumulate;
    m.backend().attention_sink_backward(m.stream(), sink);
    return std::vector<Output>{{"out", y, out, E + p.longest()},
                               {"dqkv", dx, dqkv, E + p.longest()},
                               {"dsinks", ds, dsinks, T},
                               {"dsinks added to", added, sum(before, dsinks), T}};
  });
}

TEST_CASE("sinks of rows of bf16, and of rows without a key", "[attention]") {
  const std::int64_t T = 5, H = 2, E = 40;
  const Values out = normal_values(T * H * E, 31, DType::bf16),
               dout = normal_values(T * H * E, 32, DType::bf16), sinks = rounded({0.7, -2.0}, DType::bf16),
               lse = normal_values(H * T, 33, DType::f32);
  Values scaled = out, sums = lse, dsinks(2, 0.0);
  for (std::int64_t h = 0; h < H; ++h)
    for (std::int64_t t = 0; t < T; ++t) {
      at(sums, h * T + t) = std::log(std::exp(at(lse, h * T + t)) + std::exp(at(sinks, h)));
      for (std::int64_t e = 0; e < E; ++e) {
        const std::int64_t i = (t * H + h) * E + e;
        at(scaled, i) *= std::exp(at(lse, h * T + t) - at(sums, h * T + t));
      }
    }
  // The backward pass gets the stored results of the forward pass.
  const Values stored = rounded(scaled, DType::bf16), stored_lse = rounded(sums, DType::f32);
  for (std::int64_t i = 0; i < T * H * E; ++i) {
    const std::int64_t h = i / E % H, t = i / (H * E);
    at(dsinks, h) -= std::exp(at(sinks, h) - at(stored_lse, h * T + t)) * at(stored, i) * at(dout, i);
  }
  const kernels::HeadGeometry heads{.heads = H, .kv_heads = H, .head_size = E};
  check_operator([&](Machine& m) {
    const Tensor y = m.tensor(DType::bf16, {T, H * E}, out), l = m.tensor(DType::f32, {H, T}, lse),
                 s = m.tensor(DType::bf16, {H}, sinks), ds = m.empty(DType::bf16, {H}),
                 none = m.tensor(DType::bf16, {T, H * E}, Values(static_cast<std::size_t>(T * H * E), 0.0)),
                 unseen = m.tensor(
                     DType::f32, {H, T},
                     Values(static_cast<std::size_t>(H * T), -std::numeric_limits<double>::infinity()));
    m.backend().attention_sink_forward(m.stream(),
                                       {.out_THE = heads.outputs_of(y), .lse_HT = l, .sinks_H = s});
    m.backend().attention_sink_backward(
        m.stream(), {.out_THE = heads.outputs_of(m.tensor(DType::bf16, {T, H * E}, stored)),
                     .dout_THE = heads.outputs_of(m.tensor(DType::bf16, {T, H * E}, dout)),
                     .lse_HT = m.tensor(DType::f32, {H, T}, stored_lse),
                     .sinks_H = s,
                     .dsinks_H = ds,
                     .mode = kernels::WriteMode::assign});
    m.backend().attention_sink_forward(m.stream(),
                                       {.out_THE = heads.outputs_of(none), .lse_HT = unseen, .sinks_H = s});
    Values of_sinks;
    for (std::int64_t i = 0; i < H * T; ++i) of_sinks.push_back(at(sinks, i / T));
    return std::vector<Output>{{"out", y, scaled},
                               {"lse", l, sums},
                               {"dsinks", ds, dsinks, T * E},
                               {"out of none", none, Values(static_cast<std::size_t>(T * H * E), 0.0)},
                               {"lse of none", unseen, of_sinks}};
  });
}

TEST_CASE("large scores neither overflow nor lose the largest", "[attention]") {
  const Problem p{{.heads = 1, .kv_heads = 1, .head_size = 8}, {300}, MaskKind::causal};
  for (const kernels::Isa isa : instruction_sets()) {
    Machine m(isa, 1);
    // Every score is 8 * 30 * 30: far beyond the range of exp; equal keys share the weight.
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
