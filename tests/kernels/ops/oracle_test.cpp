// Shapes of model size, and tensors at odd addresses. A float64 reference or finite differences would cost
// too much here, so the reference is the CPU world in fp32 on the same values.

#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "tests/full.h"
#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::WriteMode;

/// A machine, a dtype of activations, and an offset of tensors in their memory, in elements.
struct Trial {
  Machine& m;
  DType dtype;
  std::int64_t shift;

  Tensor tensor(DType type, const Shape& shape, Values values) const {
    values.insert(values.begin(), static_cast<std::size_t>(shift), 0.0);
    Tensor x = m.tensor(type, {shape.numel() + shift}, values);
    return view(x, shape);
  }
  Tensor empty(DType type, const Shape& shape) const {
    return view(m.empty(type, {shape.numel() + shift}), shape);
  }
  /// Values are rounded to bf16, so that every dtype has the same.
  Tensor normal(const Shape& shape, unsigned seed, double stddev = 1.0, double mean = 0.0) const {
    return tensor(dtype, shape, normal_values(shape.numel(), seed, DType::bf16, stddev, mean));
  }
  Tensor weights(const Shape& shape, unsigned seed, double mean = 0.0) const {
    return tensor(dtype, shape, normal_values(shape.numel(), seed, DType::bf16, 0.3, mean));
  }
  /// Gradients of parameters in the dtype of these, or in fp32 if that is fp16.
  Tensor like_gradients(const Shape& shape, unsigned seed) const {
    return dtype == DType::f16 ? tensor(DType::f32, shape, normal_values(shape.numel(), seed, DType::bf16))
                               : normal(shape, seed);
  }
  Tensor gradients(const Shape& shape, unsigned seed) const {
    return tensor(DType::f32, shape, normal_values(shape.numel(), seed, DType::bf16, 0.3));
  }

 private:
  Tensor view(Tensor x, const Shape& shape) const {
    x.data += shift * kernels::size_of(x.dtype);
    x.shape = shape;
    return x;
  }
};

struct Result {
  std::string name;
  Tensor tensor;
  std::int64_t length = 1;
};

/// Both may be off by a tolerance: the oracle in fp32, the result in its own dtype.
void check_against_oracle(const std::function<std::vector<Result>(const Trial&)>& op) {
  const auto oracle_backend = [](const kernels::Target& cpu,
                                 base::ThreadPool& pool) -> std::unique_ptr<kernels::Backend> {
    return std::make_unique<kernels::CpuBackend>(cpu, pool);
  };
  Machine oracle(kernels::Isa::portable, 1, false, oracle_backend);
  const std::vector<Result> expected = op({oracle, DType::f32, 0});
  for (const DType dtype : kActivationDtypes)
    for (const std::int64_t shift : {0, 1}) {
      if (!in_slice(static_cast<std::size_t>(shift + (dtype == DType::bf16)), 2)) continue;
      for (const kernels::Isa isa : instruction_sets()) {
        std::vector<Values> first;
        for (const int threads : thread_counts(shift + (dtype == DType::bf16))) {
          Machine m(isa, threads);
          const std::vector<Result> actual = op({m, dtype, shift});
          REQUIRE(actual.size() == expected.size());
          for (std::size_t i = 0; i < actual.size(); ++i) {
            const Values values = Machine::read(actual[i].tensor);
            INFO(actual[i].name << " in " << kernels::name_of(actual[i].tensor.dtype) << ", " << shift
                                << " elements in");
            CHECK(scaled_error(values, Machine::read(expected[i].tensor)) <=
                  tolerance(actual[i].tensor.dtype, actual[i].length) +
                      tolerance(DType::f32, actual[i].length));
            if (threads == 1) first.push_back(values);
            else CHECK(first[i] == values);
          }
        }
      }
    }
}

std::vector<std::int32_t> cycle(std::int64_t n, std::int64_t step, std::int64_t modulus) {
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < n; ++t) ids.push_back(static_cast<std::int32_t>(t * step % modulus));
  return ids;
}

}  // namespace

TEST_CASE("norms of long and of many rows match the CPU world", "[oracle]") {
  struct Size {
    std::int64_t rows, columns;
  };
  // Rows that fit in registers and longer ones; several parts of the weight gradient; a size without vectors.
  for (const Size s :
       {Size{35, 72}, Size{3, 1536}, Size{17, 4104}, Size{2, 9000}, Size{1, 17000}, Size{2, 2051}}) {
    if (s.columns == 9000 && !runs_full()) continue;  // between two other sizes
    for (const kernels::NormKind kind : {kernels::NormKind::rms, kernels::NormKind::layer}) {
      if (kind == kernels::NormKind::rms && s.columns > 4104) continue;  // differ in length only
      check_against_oracle([&](const Trial& on) {
        const Shape shape{s.rows, s.columns};
        kernels::AddNormForward forward{.kind = kind,
                                        .residual_TD = on.normal(shape, 1, 1.0, 0.25),
                                        .delta_TD = {},
                                        .weight_D = on.weights({s.columns}, 3, 1.0),
                                        .bias_D = on.weights({s.columns}, 4),
                                        .sum_TD = {},
                                        .y_TD = on.empty(on.dtype, shape),
                                        .mean_T = on.empty(DType::f32, {s.rows}),
                                        .rstd_T = on.empty(DType::f32, {s.rows})};
        on.m.backend().add_norm_forward(on.m.stream(), forward);
        const kernels::AddNormBackward backward{.kind = kind,
                                                .dy_TD = on.normal(shape, 5),
                                                .dsum_TD = on.normal(shape, 6),
                                                .sum_TD = forward.residual_TD,
                                                .weight_D = forward.weight_D,
                                                .mean_T = forward.mean_T,
                                                .rstd_T = forward.rstd_T,
                                                .dx_TD = on.empty(on.dtype, shape),
                                                .dweight_D = on.gradients({s.columns}, 7),
                                                .dbias_D = on.gradients({s.columns}, 8),
                                                .mode = WriteMode::accumulate};
        on.m.backend().add_norm_backward(on.m.stream(), backward);
        return std::vector<Result>{{"y", forward.y_TD, s.columns},
                                   {"rstd", forward.rstd_T, s.columns},
                                   {"dx", backward.dx_TD, s.columns},
                                   {"dweight", backward.dweight_D, s.columns + s.rows},
                                   {"dbias", backward.dbias_D, s.rows}};
      });
    }
  }
}

TEST_CASE("a norm adds delta to long rows as it does to short ones", "[oracle]") {
  for (const std::int64_t columns : {40, 4128, 9000, 17000, 2051})
    check_against_oracle([&](const Trial& on) {
      const Shape shape{2, columns};
      // Sums of multiples of 1/16 below 8 are exact in bf16, so both sides have the same statistics.
      Values small;
      for (std::int64_t i = 0; i < shape.numel(); ++i)
        small.push_back(static_cast<double>(i * 7 % 61 - 30) / 16);
      const kernels::AddNormForward args{.residual_TD = on.tensor(on.dtype, shape, small),
                                         .delta_TD = on.tensor(on.dtype, shape, small),
                                         .weight_D = on.weights({columns}, 3, 1.0),
                                         .bias_D = {},
                                         .sum_TD = on.empty(on.dtype, shape),
                                         .y_TD = on.empty(on.dtype, shape),
                                         .mean_T = {},
                                         .rstd_T = on.empty(DType::f32, {2})};
      on.m.backend().add_norm_forward(on.m.stream(), args);
      return std::vector<Result>{{"sum", args.sum_TD}, {"y", args.y_TD, columns}};
    });
}

TEST_CASE("activation functions over several blocks of columns match the CPU world", "[oracle]") {
  for (const std::int64_t ffn : {2056, 2051, 4104})
    check_against_oracle([&](const Trial& on) {
      const Tensor x = on.normal({3, 2 * ffn}, 1, 2.0), d = on.normal({3, ffn}, 2),
                   act = on.empty(on.dtype, {3, ffn}), again = on.empty(on.dtype, {3, ffn}),
                   dx = on.empty(on.dtype, {3, 2 * ffn}), gelu = on.empty(on.dtype, {3, 2 * ffn}),
                   dgelu = on.empty(on.dtype, {3, 2 * ffn});
      on.m.backend().glu_forward(on.m.stream(), {.gate_up_T2F = x, .act_TF = act});
      on.m.backend().glu_backward(on.m.stream(),
                                  {.dact_TF = d, .gate_up_T2F = x, .dgate_up_T2F = dx, .act_TF = again});
      on.m.backend().gelu_forward(on.m.stream(), {.x_TF = x, .act_TF = gelu});
      on.m.backend().gelu_backward(on.m.stream(), {.dact_TF = x, .x_TF = x, .dx_TF = dgelu});
      return std::vector<Result>{
          {"act", act}, {"act again", again}, {"dgate_up", dx}, {"gelu", gelu}, {"dgelu", dgelu}};
    });
}

TEST_CASE("heads of models' sizes are normed and rotated as in the CPU world", "[oracle]") {
  for (const kernels::HeadGeometry heads :
       {kernels::HeadGeometry{28, 4, 128}, {3, 1, 96}, {4, 4, 64}, {2, 2, 256}, {1, 1, 80}, {2, 1, 7}})
    for (const bool norm : {false, true}) {
      const std::int64_t tokens = 37, e = heads.head_size;
      const bool rope = e % 2 == 0;
      check_against_oracle([&](const Trial& on) {
        const Shape shape{tokens, heads.columns()};
        const Tensor table = rope ? on.empty(DType::f32, {50, e}) : Tensor{};
        std::vector<double> frequencies;
        for (std::int64_t i = 0; i < e / 2; ++i)
          frequencies.push_back(std::pow(1000.0, -2.0 * static_cast<double>(i) / static_cast<double>(e)));
        if (rope) on.m.backend().rope_table(on.m.stream(), {.frequencies = frequencies, .table_SR = table});
        const Tensor positions = on.m.ids(cycle(tokens, 7, 50));
        const kernels::QkNormRopeForward forward{.heads = heads,
                                                 .qkv_in = on.normal(shape, 1),
                                                 .qkv_out = on.empty(on.dtype, shape),
                                                 .positions_T = positions,
                                                 .rope_table_SR = table,
                                                 .q_weight_E = norm ? on.weights({e}, 2, 1.0) : Tensor{},
                                                 .k_weight_E = norm ? on.weights({e}, 3, 1.0) : Tensor{}};
        on.m.backend().qk_norm_rope_forward(on.m.stream(), forward);
        const kernels::QkNormRopeBackward backward{.heads = heads,
                                                   .qkv_in = forward.qkv_in,
                                                   .dqkv = on.normal(shape, 4),
                                                   .positions_T = positions,
                                                   .rope_table_SR = table,
                                                   .q_weight_E = forward.q_weight_E,
                                                   .k_weight_E = forward.k_weight_E,
                                                   .dq_weight_E = norm ? on.gradients({e}, 5) : Tensor{},
                                                   .dk_weight_E = norm ? on.gradients({e}, 6) : Tensor{},
                                                   .mode = WriteMode::accumulate};
        on.m.backend().qk_norm_rope_backward(on.m.stream(), backward);
        std::vector<Result> results{{"qkv", forward.qkv_out, e}, {"dqkv", backward.dqkv, e}};
        if (norm) {
          results.push_back({"dq_weight", backward.dq_weight_E, tokens * heads.heads});
          results.push_back({"dk_weight", backward.dk_weight_E, tokens * heads.kv_heads});
        }
        return results;
      });
    }
}

TEST_CASE("cross-entropy over rows at any address matches the CPU world", "[oracle]") {
  struct Size {
    std::int64_t held, vocab;
    float softcap = 0;
  };
  for (const Size s : {Size{50257, 50257}, Size{20000, 19997}, Size{9001, 9000}, Size{3, 2}, Size{17, 17},
                       Size{9001, 9000, 2.5f}, Size{17, 15, 30.0f}})
    check_against_oracle([&](const Trial& on) {
      const std::int64_t tokens = 3;
      const Tensor logits = on.normal({tokens, s.held}, 1, 3.0),
                   targets = on.m.ids(cycle(tokens, 7919, s.vocab));
      const kernels::CeStats stats{.logits_TV = logits,
                                   .targets_T = targets,
                                   .first_row = 0,
                                   .vocab = s.vocab,
                                   .softcap = s.softcap,
                                   .max_T = on.empty(DType::f32, {tokens}),
                                   .sum_exp_T = on.empty(DType::f32, {tokens}),
                                   .target_logit_T = on.empty(DType::f32, {tokens})};
      on.m.backend().ce_stats(on.m.stream(), stats);
      const kernels::CeFinish finish{.logits_TV = logits,
                                     .targets_T = targets,
                                     .loss_weight_T = on.tensor(DType::f32, {tokens}, {1.0, 0.0, 0.5}),
                                     .first_row = 0,
                                     .vocab = s.vocab,
                                     .softcap = s.softcap,
                                     .max_T = stats.max_T,
                                     .sum_exp_T = stats.sum_exp_T,
                                     .target_logit_T = stats.target_logit_T,
                                     .grad_scale = 0.25f,
                                     .loss_T = on.empty(DType::f32, {tokens})};
      on.m.backend().ce_finish(on.m.stream(), finish);
      return std::vector<Result>{{"max", stats.max_T},
                                 {"sum_exp", stats.sum_exp_T, s.held},
                                 {"loss", finish.loss_T, s.held},
                                 {"dlogits", logits, s.held}};
    });
}

TEST_CASE("the embedding's gradient over many tiles and digits is the CPU world's", "[oracle]") {
  for (const std::int64_t rows : {300, 70000})
    check_against_oracle([&](const Trial& on) {
      const std::int64_t tokens = 1100, d = rows == 300 ? 1032 : 24;
      std::vector<std::int32_t> ids = cycle(tokens, 65537 * 3, rows + 40);
      for (std::size_t t = 0; t < ids.size(); t += 3)
        ids[t] = static_cast<std::int32_t>(20 + rows / 2);  // many tokens of one row
      const kernels::EmbeddingBackward args{.rows_T = on.m.ids(ids),
                                            .first_row = 20,
                                            .dout_TD = on.normal({tokens, d}, 1),
                                            .dtable_VD = on.empty(DType::f32, {rows, d}),
                                            .mode = WriteMode::assign};
      on.m.backend().embedding_backward(on.m.stream(), args);
      return std::vector<Result>{
          {"dtable", args.dtable_VD, 1}};  // same order of the sum: the tolerance has no length
    });
}

TEST_CASE("flat operators on odd addresses match the CPU world", "[oracle]") {
  check_against_oracle([](const Trial& on) {
    const std::int64_t n = 16384 + 4099;
    const Tensor a = on.normal({n}, 1), b = on.normal({n}, 2), out = on.empty(on.dtype, {n}),
                 wide = on.empty(DType::f32, {n}), sums = on.empty(DType::f64, {kernels::norm_blocks(n)});
    on.m.backend().add(on.m.stream(), {.a = a, .b = b, .out = out});
    on.m.backend().scale(on.m.stream(), {.x = b, .factor = 0.3f, .out = b});
    on.m.backend().cast(on.m.stream(), {.in = a, .out = wide});
    on.m.backend().block_square_sums(on.m.stream(), {.x = a, .sums = sums});
    const Tensor parts = on.normal({3 * n}, 3), odd_sum = on.empty(DType::f32, {n}),
                 even_sum = on.gradients({n - n % 8}, 4), narrow_sum = on.empty(DType::bf16, {n}),
                 like_sum = on.empty(on.dtype, {n}), wide_parts = on.gradients({3 * n}, 5);
    on.m.backend().sum_parts(on.m.stream(), {.x = parts, .out = odd_sum, .parts = 3});
    on.m.backend().sum_parts(on.m.stream(), {.x = parts.rows(0, 2 * even_sum.numel()),
                                             .out = even_sum,
                                             .parts = 2,
                                             .mode = kernels::WriteMode::accumulate});
    on.m.backend().sum_parts(on.m.stream(), {.x = wide_parts, .out = narrow_sum, .parts = 3});
    on.m.backend().sum_parts(on.m.stream(), {.x = parts, .out = like_sum, .parts = 3});
    return std::vector<Result>{{"sum of odd parts", odd_sum},
                               {"sum in bf16", narrow_sum},
                               {"sum in its dtype", like_sum},
                               {"sum of even parts", even_sum},
                               {"sum", out},
                               {"scaled", b},
                               {"cast", wide},
                               {"square sums", sums, n}};
  });
}

TEST_CASE("updates along a direction and many boxes on odd addresses match the CPU world", "[oracle]") {
  check_against_oracle([](const Trial& on) {
    const std::int64_t n = 16384 + 4099;
    kernels::StepControlValues control;
    control.grad_factor = 0.5f;
    const Tensor values = on.m.empty(DType::u8, {static_cast<std::int64_t>(sizeof(control))});
    on.m.backend().write(on.m.stream(), std::as_bytes(std::span(&control, 1)), values);
    const Tensor direction = on.empty(DType::f32, {n}), momentum = on.gradients({n}, 2),
                 master = on.gradients({n}, 3), params = on.tensor(on.dtype, {n}, Values(n, 0.0));
    on.m.backend().momentum_update(on.m.stream(), {.grads = on.like_gradients({n}, 1),
                                                   .momentum = momentum,
                                                   .direction = direction,
                                                   .control = values});
    const std::vector<kernels::UpdateRange> ranges{{.begin = 0, .count = 5, .weight_decay = 0.1f},
                                                   {.begin = 5, .count = n - 5}};
    on.m.backend().direction_update(on.m.stream(), {.ranges = ranges,
                                                    .direction = direction,
                                                    .master = master,
                                                    .params = params,
                                                    .control = values,
                                                    .lr = 0.01f,
                                                    .scale = 2});
    // More boxes than one launch covers: single rows of a transposed matrix.
    std::vector<kernels::MatrixBox> boxes;
    for (std::int64_t r = 0; r < 1200; ++r) boxes.push_back({r * 17, r, 0, 1, 17});
    const Tensor matrix = on.empty(DType::f32, {17, 1200});
    on.m.backend().copy_boxes(on.m.stream(), {.to = kernels::CopyBoxes::To::matrix,
                                              .boxes = boxes,
                                              .packed = direction,
                                              .matrix = matrix,
                                              .transposed = true});
    const Tensor unit = on.gradients({n}, 4);
    on.m.backend().normalise(on.m.stream(), {.x = unit, .eps = 1e-7f});
    return std::vector<Result>{{"momentum", momentum}, {"direction", direction}, {"master", master},
                               {"params", params},     {"matrix", matrix},       {"normalised", unit}};
  });
}

TEST_CASE("hundreds of ranges and thousands of runs are walked as in the CPU world", "[oracle]") {
  check_against_oracle([](const Trial& on) {
    const std::int64_t n = 9000, runs = 2600;
    std::vector<kernels::UpdateRange> ranges;
    for (std::int64_t i = 0; i < 900; ++i) ranges.push_back({10 * i, i % 11, i % 2 == 0 ? 0.1f : 0.0f});
    kernels::StepControlValues control;
    control.grad_factor = 0.5f;
    const Tensor values = on.m.empty(DType::u8, {static_cast<std::int64_t>(sizeof(control))});
    on.m.backend().write(on.m.stream(), std::as_bytes(std::span(&control, 1)), values);
    Values squares = normal_values(n, 4, DType::bf16);
    for (double& v : squares) v = std::abs(v);
    const kernels::ParamUpdate update{.ranges = ranges,
                                      .grads = on.like_gradients({n}, 1),
                                      .master = on.gradients({n}, 2),
                                      .moment1 = on.gradients({n}, 3),
                                      .moment2 = on.tensor(DType::f32, {n}, squares),
                                      .params = on.tensor(on.dtype, {n}, Values(n, 0.0)),
                                      .control = values,
                                      .lr = 0.01f,
                                      .step = 7};
    on.m.backend().param_update(on.m.stream(), update);
    std::vector<Result> of_rules;
    for (const auto& [name, rule] :
         {std::pair{"lion", kernels::UpdateRule::lion}, {"sgd", kernels::UpdateRule::sgd}}) {
      kernels::ParamUpdate other = update;
      other.rule = rule, other.nesterov = rule == kernels::UpdateRule::sgd;
      other.master = on.gradients({n}, 2), other.moment1 = on.gradients({n}, 3), other.moment2 = {};
      other.params = on.tensor(on.dtype, {n}, Values(n, 0.0));
      on.m.backend().param_update(on.m.stream(), other);
      of_rules.push_back({std::string(name) + "'s master", other.master});
      of_rules.push_back({std::string(name) + "'s moment", other.moment1});
    }

    std::vector<std::int64_t> first_block{0};
    for (std::int64_t r = 0; r < runs; ++r) first_block.push_back(first_block.back() + r % 3);
    Values sums(static_cast<std::size_t>(first_block.back()));
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = 1.0 / static_cast<double>(i + 1);
    const Tensor total = on.empty(DType::f64, {1}), nonfinite = on.m.empty(DType::i32, {1}),
                 late = on.m.empty(DType::i32, {1}), bad_total = on.empty(DType::f64, {1}),
                 flag = on.empty(DType::f32, {1}), flagged = on.empty(DType::f32, {1});
    const Shape blocks{static_cast<std::int64_t>(sums.size())};
    on.m.backend().total_square_sum(on.m.stream(), {.sums = on.tensor(DType::f64, blocks, sums),
                                                    .first_block = first_block,
                                                    .total = total,
                                                    .nonfinite = nonfinite,
                                                    .flag = flag,
                                                    .flag_value = 7});
    sums[2000] = sums[2400] = std::numeric_limits<double>::infinity();
    on.m.backend().total_square_sum(on.m.stream(), {.sums = on.tensor(DType::f64, blocks, sums),
                                                    .first_block = first_block,
                                                    .total = bad_total,
                                                    .nonfinite = late,
                                                    .flag = flagged,
                                                    .flag_value = 7});
    CHECK(Machine::read(bad_total)[0] == std::numeric_limits<double>::infinity());
    CHECK(Machine::read(flag)[0] == 0);
    CHECK(Machine::read(flagged)[0] == 7);
    std::vector<Result> results{{"master", update.master},   {"params", update.params},
                                {"moment2", update.moment2}, {"total", total, 3000},
                                {"nonfinite", nonfinite, 1}, {"run of the infinity", late, 1}};
    results.insert(results.end(), of_rules.begin(), of_rules.end());
    return results;
  });
}

}  // namespace trainerd::test
