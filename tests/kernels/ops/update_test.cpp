#include <array>
#include <limits>

#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::StepControlValues;
using kernels::UpdateRule;

StepControlValues control_of(Machine& m, const Values& sums, const std::vector<std::int64_t>& first_block,
                             double loss, double clip, double weight = 1, double nominal_weight = 1) {
  const Tensor values = m.empty(DType::u8, {static_cast<std::int64_t>(sizeof(StepControlValues))});
  const Tensor total = m.empty(DType::f64, {1}), nonfinite = m.empty(DType::i32, {1});
  m.backend().total_square_sum(m.stream(),
                               {.sums = m.tensor(DType::f64, {static_cast<std::int64_t>(sums.size())}, sums),
                                .first_block = first_block,
                                .total = total,
                                .nonfinite = nonfinite});
  m.backend().step_control(m.stream(), {.square_sum = total,
                                        .loss = m.tensor(DType::f64, {1}, {loss}),
                                        .weight = m.tensor(DType::f64, {1}, {weight}),
                                        .nominal_weight = nominal_weight,
                                        .nonfinite = nonfinite,
                                        .clip_norm = clip,
                                        .values = values});
  StepControlValues control;
  std::memcpy(&control, read_bytes(values).data(), sizeof(control));
  return control;
}

}  // namespace

TEST_CASE("step control clips by the global norm and never scales up", "[update]") {
  Machine m(kernels::Isa::portable, 1);
  const std::vector<std::int64_t> tensors{0, 2, 3};
  const StepControlValues clipped = control_of(m, {4.0, 5.0, 16.0}, tensors, 1.0, 2.0);
  CHECK(clipped.grad_norm == 5.0);
  CHECK(clipped.grad_factor == 0.4f);
  CHECK(clipped.skip == 0);
  CHECK(clipped.nonfinite == -1);
  CHECK(control_of(m, {4.0, 5.0, 16.0}, tensors, 1.0, 7.0).grad_factor == 1.0f);
  CHECK(control_of(m, {4.0, 5.0, 16.0}, tensors, 1.0, 0.0).grad_factor == 1.0f);
  CHECK(control_of(m, {0.0, 0.0, 0.0}, tensors, 1.0, 1.0).grad_factor == 1.0f);
}

TEST_CASE(
    "step control skips for an id outside the vocabulary, then for a value that is not finite, then for "
    "crowded experts",
    "[update]") {
  for (const auto& [square_sum, outside, crowded] : {std::tuple{4.0, 0.0, 0.0},
                                                     {4.0, 0.0, 3.0},
                                                     {4.0, 2.0, 3.0},
                                                     {HUGE_VAL, 0.0, 0.0},
                                                     {HUGE_VAL, 2.0, 0.0},
                                                     {HUGE_VAL, 0.0, 3.0}}) {
    Machine m(kernels::Isa::portable, 1);
    const Tensor values = m.empty(DType::u8, {sizeof(StepControlValues)});
    m.backend().step_control(m.stream(), {.square_sum = m.tensor(DType::f64, {1}, {square_sum}),
                                          .loss = m.tensor(DType::f64, {1}, {1.0}),
                                          .weight = m.tensor(DType::f64, {1}, {1.0}),
                                          .nonfinite = m.ids({-1}),
                                          .outside = m.tensor(DType::f32, {1}, {outside}),
                                          .crowded = m.tensor(DType::f32, {1}, {crowded}),
                                          .values = values});
    StepControlValues control;
    std::memcpy(&control, read_bytes(values).data(), sizeof(control));
    CHECK(control.skip == (outside > 0                  ? StepControlValues::kSkipOutside
                           : !std::isfinite(square_sum) ? StepControlValues::kSkipNonfinite
                           : crowded > 0                ? StepControlValues::kSkipCrowded
                                                        : 0));
  }
}

TEST_CASE("step control takes the loss scale out, and tells an overflow from a loss that is not finite",
          "[update]") {
  struct Case {
    double square_sum, loss, scale;
    std::int32_t skip;
  };
  for (const Case& c : {Case{4.0 * 1024 * 1024, 1.0, 1024, 0},
                        {HUGE_VAL, 1.0, 1024, StepControlValues::kSkipOverflow},
                        {std::nan(""), 1.0, 4, StepControlValues::kSkipOverflow},
                        {HUGE_VAL, 1.0, 2, StepControlValues::kSkipNonfinite},
                        {4.0, std::nan(""), 1024, StepControlValues::kSkipNonfinite}}) {
    Machine m(kernels::Isa::portable, 1);
    const Tensor values = m.empty(DType::u8, {sizeof(StepControlValues)});
    m.backend().step_control(m.stream(), {.square_sum = m.tensor(DType::f64, {1}, {c.square_sum}),
                                          .loss = m.tensor(DType::f64, {1}, {c.loss}),
                                          .weight = m.tensor(DType::f64, {1}, {8.0}),
                                          .nominal_weight = 16,
                                          .nonfinite = m.ids({-1}),
                                          .clip_norm = 1,
                                          .values = values,
                                          .loss_scale = m.tensor(DType::f32, {3}, {c.scale, 7, 5}),
                                          .min_loss_scale = 2,
                                          .step = 9,
                                          .beta1 = 0.5f,
                                          .beta2 = 0.75f});
    StepControlValues control;
    std::memcpy(&control, read_bytes(values).data(), sizeof(control));
    CHECK(control.skip == c.skip);
    CHECK(control.loss_scale == static_cast<float>(c.scale));
    // Four of nine steps updated something before and with this one.
    CHECK(control.correction1 == static_cast<float>(1 / (1 - 0.0625)));
    CHECK(control.correction2 == static_cast<float>(1 / (1 - std::pow(0.75, 4))));
    if (c.skip != 0) continue;
    CHECK(control.grad_norm == 4);  // 2 for the half of the tokens that count
    CHECK(control.grad_factor == 0.25f * 2 / 1024);
  }
}

TEST_CASE("the loss scale halves after an overflow and doubles after enough updates", "[update]") {
  struct Case {
    std::array<double, 3> before;
    std::int32_t skip;
    std::array<double, 3> after;
  };
  for (const Case& c : {Case{{16, 3, 1}, StepControlValues::kSkipOverflow, {8, 0, 2}},
                        {{4, 3, 1}, StepControlValues::kSkipOverflow, {4, 0, 2}},  // the lowest
                        {{16, 3, 1}, 0, {16, 4, 1}},
                        {{16, 4, 1}, 0, {32, 0, 1}},
                        {{64, 4, 1}, 0, {64, 0, 1}},  // the highest
                        {{16, 4, 1}, StepControlValues::kSkipJudged, {16, 4, 1}},
                        {{16, 4, 1}, StepControlValues::kSkipEmpty, {16, 4, 1}}}) {
    Machine m(kernels::Isa::portable, 1);
    const Tensor state = m.tensor(DType::f32, {3}, {c.before[0], c.before[1], c.before[2]});
    m.backend().loss_scale_update(m.stream(), {.state = state,
                                               .control = control_tensor(m, 1.0f, c.skip),
                                               .lowest = 4,
                                               .highest = 64,
                                               .growth_steps = 5});
    CHECK(Machine::read(state) == Values{c.after[0], c.after[1], c.after[2]});
  }
}

TEST_CASE("adamw corrects its moments as its control says", "[update]") {
  const std::vector<kernels::UpdateRange> ranges{{0, 20, 0.0f}};
  check_operator([&](Machine& m) {
    const auto updated = [&](std::int64_t step, std::int64_t t) {
      StepControlValues control;
      control.grad_factor = 1;
      if (t > 0)
        control.correction1 = kernels::adam_correction(0.9f, t),
        control.correction2 = kernels::adam_correction(0.95f, t);
      const Tensor values = m.empty(DType::u8, {static_cast<std::int64_t>(sizeof(control))});
      m.backend().write(m.stream(), std::as_bytes(std::span(&control, 1)), values);
      const Values ones(20, 1.0);
      const kernels::ParamUpdate args{.ranges = ranges,
                                      .grads = m.tensor(DType::f32, {20}, ones),
                                      .master = m.tensor(DType::f32, {20}, ones),
                                      .moment1 = m.tensor(DType::f32, {20}, Values(20, 0.25)),
                                      .moment2 = m.tensor(DType::f32, {20}, Values(20, 0.5)),
                                      .params = {},
                                      .control = values,
                                      .lr = 0.5f,
                                      .step = step};
      m.backend().param_update(m.stream(), args);
      return Machine::read(args.master);
    };
    CHECK(updated(9, 4) == updated(4, 0));
    CHECK(updated(9, 4) != updated(9, 0));
    return std::vector<Output>{};
  });
}

TEST_CASE("square sums by group cover the group's runs, and the total covers all runs", "[update]") {
  // More runs than one launch covers, some of them empty, in three groups, one of which has no runs.
  std::vector<std::int64_t> first_block{0};
  std::vector<std::int32_t> group;
  for (std::int64_t run = 0; run < 2600; ++run) {
    first_block.push_back(first_block.back() + run % 3);
    group.push_back(run % 7 < 3 ? 2 : 0);
  }
  Values sums(static_cast<std::size_t>(first_block.back())), expected(3, 0.0);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = 1.0 / static_cast<double>(i + 1);
  for (std::size_t run = 0; run < group.size(); ++run)
    for (std::int64_t b = first_block[run]; b < first_block[run + 1]; ++b)
      expected[static_cast<std::size_t>(group[run])] += sums[static_cast<std::size_t>(b)];
  check_operator([&](Machine& m) {
    const Tensor totals = m.empty(DType::f64, {3});
    m.backend().group_square_sums(
        m.stream(), {.sums = m.tensor(DType::f64, {static_cast<std::int64_t>(sums.size())}, sums),
                     .first_block = first_block,
                     .group_of_run = group,
                     .totals = totals});
    CHECK(Machine::read(totals)[1] == 0);
    return std::vector<Output>{{"totals", totals, expected, 2600}};
  });
}

TEST_CASE("an average of weights moves by its decay, except in a skipped step", "[update]") {
  for (const DType dtype : kStateDtypes)
    for (const std::int64_t n : {1, 37, 2 * 16384 + 5}) {
      const float decay = 0.99f;
      const Values weights = normal_values(n, 1, dtype), before = normal_values(n, 2, DType::f32);
      Values expected;
      for (std::size_t i = 0; i < before.size(); ++i)
        expected.push_back(double{decay} * before[i] + (1 - double{decay}) * weights[i]);
      check_operator([&](Machine& m) {
        const auto averaged = [&](std::int32_t skip) {
          StepControlValues control;
          control.skip = skip;
          const Tensor values = m.empty(DType::u8, {static_cast<std::int64_t>(sizeof(control))}),
                       average = m.tensor(DType::f32, {n}, before);
          m.backend().write(m.stream(), std::as_bytes(std::span(&control, 1)), values);
          m.backend().average_update(m.stream(), {.weights = m.tensor(dtype, {n}, weights),
                                                  .average = average,
                                                  .control = values,
                                                  .decay = decay});
          return average;
        };
        CHECK(Machine::read(averaged(StepControlValues::kSkipNonfinite)) == before);
        return std::vector<Output>{{"average", averaged(0), expected}};
      });
    }
}

TEST_CASE("biases of experts move towards even use, except in a skipped step", "[update][experts]") {
  struct Case {
    Values counts;
    std::vector<int> moves;
  };
  // A mean of 8 / 3; an even one; counts whose product with their number fp32 cannot hold; no tokens.
  for (const Case& c :
       {Case{{4, 2, 2}, {-1, 1, 1}}, Case{{5, 7, 3, 5}, {0, -1, 1, 0}}, Case{{0, 1}, {1, -1}},
        Case{{9e6, 9e6 + 1, 9e6 - 1, 9e6}, {0, -1, 1, 0}}, Case{{0, 0, 0}, {0, 0, 0}}, Case{{3}, {0}}}) {
    const auto n = static_cast<std::int64_t>(c.counts.size());
    const float rate = 0.25f;
    const Values before = normal_values(n, 2, DType::f32);
    Values expected;
    for (std::size_t i = 0; i < before.size(); ++i)
      expected.push_back(static_cast<float>(before[i]) + static_cast<float>(c.moves[i]) * rate);
    check_operator([&](Machine& m) {
      const auto moved = [&](std::int32_t skip) {
        StepControlValues control;
        control.skip = skip;
        const Tensor values = m.empty(DType::u8, {static_cast<std::int64_t>(sizeof(control))}),
                     biases = m.tensor(DType::f32, {n}, before);
        m.backend().write(m.stream(), std::as_bytes(std::span(&control, 1)), values);
        m.backend().expert_bias_update(m.stream(), {.count_E = m.tensor(DType::f32, {n}, c.counts),
                                                    .bias_E = biases,
                                                    .control = values,
                                                    .rate = rate});
        return biases;
      };
      CHECK(Machine::read(moved(StepControlValues::kSkipCrowded)) == before);
      CHECK(Machine::read(moved(0)) == expected);
      return std::vector<Output>{{"biases", moved(0), expected}};
    });
  }
}

TEST_CASE("step control divides gradients by the loss weights before it clips", "[update]") {
  Machine m(kernels::Isa::portable, 1);
  const std::vector<std::int64_t> tensors{0, 2, 3};
  const StepControlValues mean = control_of(m, {4.0, 5.0, 16.0}, tensors, 1.0, 0.0, 16.0, 64.0);
  CHECK(mean.grad_norm == 20.0);
  CHECK(mean.grad_factor == 4.0f);
  CHECK(mean.skip == 0);
  const StepControlValues clipped = control_of(m, {4.0, 5.0, 16.0}, tensors, 1.0, 2.0, 16.0, 64.0);
  CHECK(clipped.grad_norm == 20.0);
  CHECK(clipped.grad_factor == 0.4f);  // 2 / 20 x 4
  CHECK(control_of(m, {4.0, 5.0, 16.0}, tensors, 1.0, 25.0, 16.0, 64.0).grad_factor == 4.0f);
  const StepControlValues empty = control_of(m, {0.0, 0.0, 0.0}, tensors, 0.0, 1.0, 0.0, 64.0);
  CHECK(empty.skip == StepControlValues::kSkipEmpty);
  CHECK(empty.grad_norm == 0.0);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(control_of(m, {nan, 0.0, 0.0}, tensors, 0.0, 1.0, 0.0, 64.0).skip ==
        StepControlValues::kSkipNonfinite);
}

TEST_CASE("step control skips on a value that is not finite and names the first tensor", "[update]") {
  Machine m(kernels::Isa::portable, 1);
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::int64_t> tensors{0, 2, 3, 4};
  const StepControlValues gradient = control_of(m, {4.0, 5.0, nan, inf}, tensors, 1.0, 1.0);
  CHECK(gradient.skip == 1);
  CHECK(gradient.nonfinite == 1);
  CHECK(control_of(m, {4.0, inf, nan, 1.0}, tensors, 1.0, 1.0).nonfinite == 0);
  const StepControlValues loss = control_of(m, {4.0, 5.0, 1.0, 1.0}, tensors, nan, 1.0);
  CHECK(loss.skip == 1);
  CHECK(loss.nonfinite == -1);
}

namespace {

struct RuleCase {
  UpdateRule rule;
  bool nesterov = false;
};
constexpr RuleCase kRules[] = {
    {UpdateRule::adamw}, {UpdateRule::lion}, {UpdateRule::sgd}, {UpdateRule::sgd, true}};

/// One element's state.
struct Element {
  double w, m1, m2;
};

/// The rules of UpdateRule in double.
Element moved(const RuleCase& c, const kernels::ParamUpdate& a, Element x, double g, double decay) {
  const double b1 = a.beta1, b2 = a.beta2, before = x.m1;
  double move = 0;
  if (c.rule == UpdateRule::adamw) {
    x.m1 = b1 * before + (1 - b1) * g;
    x.m2 = b2 * x.m2 + (1 - b2) * g * g;
    const auto t = static_cast<double>(a.step);
    move = x.m1 / (1 - std::pow(b1, t)) / (std::sqrt(x.m2 / (1 - std::pow(b2, t))) + a.eps);
  } else if (c.rule == UpdateRule::lion) {
    const double mean = b1 * before + (1 - b1) * g;
    move = mean > 0 ? 1 : mean < 0 ? -1 : 0;
    x.m1 = b2 * before + (1 - b2) * g;
  } else {
    x.m1 = b1 * before + g;
    move = c.nesterov ? g + b1 * x.m1 : x.m1;
  }
  x.w -= a.lr * (move + decay * x.w);
  return x;
}

}  // namespace

TEST_CASE("updates match their float64 formulas on their ranges and leave the rest", "[update]") {
  const std::int64_t n = 16384 + 1000;
  // A gap at the front, one in the middle that crosses a block, ranges that end and begin within one block.
  const std::vector<kernels::UpdateRange> ranges{
      {5, 1, 0.0f}, {6, 300, 0.1f}, {1000, 15000, 0.01f}, {16390, 900, 0.5f}};
  const float factor = 0.5f;
  for (const RuleCase& rule : kRules)
    for (const DType grad_dtype : kStateDtypes)
      for (const auto& [param_dtype, master_dtype, moment_dtype] :
           {std::array{DType::f32, DType::f32, DType::f32},
            {DType::bf16, DType::f32, DType::f32},
            {DType::f32, DType::f32, DType::bf16},
            {DType::bf16, DType::f32, DType::bf16},
            {DType::bf16, DType::bf16, DType::f32},
            {DType::bf16, DType::bf16, DType::bf16},
            {DType::f16, DType::f32, DType::f32},
            {DType::f16, DType::f32, DType::bf16}}) {
        if (mixed(param_dtype, grad_dtype)) continue;
        if (rule.rule != UpdateRule::adamw && (grad_dtype == DType::bf16) != (master_dtype == DType::bf16))
          continue;
        const bool second = kernels::has_second_moment(rule.rule);
        CAPTURE(static_cast<int>(rule.rule), rule.nesterov);
        Values grads = normal_values(n, 1, grad_dtype), moment1 = normal_values(n, 3, moment_dtype);
        const Values master = normal_values(n, 2, master_dtype);
        // A mean of zero, and the smallest ones: lion moves by their sign.
        grads[10] = moment1[10] = 0;
        grads[11] = 0, moment1[11] = 0x1p-126;
        grads[12] = 0, moment1[12] = -0x1p-126;
        Values moment2 = normal_values(n, 4, moment_dtype);
        for (double& v : moment2) v = std::abs(v);
        const Values params = normal_values(n, 5, param_dtype);
        kernels::ParamUpdate args{.ranges = ranges,
                                  .grads = {},
                                  .master = {},
                                  .moment1 = {},
                                  .moment2 = {},
                                  .params = {},
                                  .control = {},
                                  .rule = rule.rule,
                                  .lr = 0.01f,
                                  .beta1 = 0.9f,
                                  .beta2 = 0.99f,
                                  .eps = 1e-3f,
                                  .nesterov = rule.nesterov,
                                  .step = 3};
        Values w = master, m1 = moment1, m2 = moment2, p = params;
        for (const kernels::UpdateRange& range : ranges)
          for (auto i = static_cast<std::size_t>(range.begin);
               i < static_cast<std::size_t>(range.begin + range.count); ++i) {
            const Element x = moved(rule, args, {w[i], m1[i], m2[i]}, grads[i] * factor, range.weight_decay);
            w[i] = p[i] = x.w, m1[i] = x.m1, m2[i] = x.m2;
          }
        check_operator([&](Machine& m) {
          args.grads = m.tensor(grad_dtype, {n}, grads);
          args.master = m.tensor(master_dtype, {n}, master);
          args.moment1 = m.tensor(moment_dtype, {n}, moment1);
          args.moment2 = second ? m.tensor(moment_dtype, {n}, moment2) : Tensor{};
          args.params = master_dtype == DType::f32 ? m.tensor(param_dtype, {n}, params) : Tensor{};
          args.control = control_tensor(m, factor, 0);
          m.backend().param_update(m.stream(), args);
          std::vector<Output> outputs{{"master", args.master, w}, {"moment1", args.moment1, m1}};
          if (second) outputs.push_back({"moment2", args.moment2, m2});
          if (args.params.defined()) outputs.push_back({"params", args.params, p});
          // Elements outside all ranges keep their bits.
          const Values after = Machine::read(args.master);
          for (const std::size_t i : {std::size_t{0}, std::size_t{4}, std::size_t{306}, std::size_t{999},
                                      std::size_t{16389}, std::size_t{17383}})
            CHECK(after[i] == master[i]);
          args.params = {};
          args.master = m.tensor(master_dtype, {n}, master);
          args.moment1 = m.tensor(moment_dtype, {n}, moment1);
          if (second) args.moment2 = m.tensor(moment_dtype, {n}, moment2);
          m.backend().param_update(m.stream(), args);
          outputs.push_back({"master without params", args.master, w});
          return outputs;
        });
      }
}

TEST_CASE("updates do nothing if the control skips the step", "[update]") {
  const std::vector<kernels::UpdateRange> ranges{{0, 20, 0.1f}};
  for (const RuleCase& rule : kRules) {
    const kernels::Isa isa = instruction_sets().back();
    const bool second = kernels::has_second_moment(rule.rule);
    Machine m(isa, 1);
    const Values ones(20, 1.0), nans(20, std::nan(""));
    const kernels::ParamUpdate args{.ranges = ranges,
                                    .grads = m.tensor(DType::f32, {20}, nans),
                                    .master = m.tensor(DType::f32, {20}, ones),
                                    .moment1 = m.tensor(DType::f32, {20}, ones),
                                    .moment2 = second ? m.tensor(DType::f32, {20}, ones) : Tensor{},
                                    .params = m.tensor(DType::bf16, {20}, ones),
                                    .control = control_tensor(m, 1.0f, 1),
                                    .rule = rule.rule,
                                    .lr = 0.1f,
                                    .step = 1};
    m.backend().param_update(m.stream(), args);
    CHECK(Machine::read(args.master) == ones);
    CHECK(Machine::read(args.moment1) == ones);
    if (second) CHECK(Machine::read(args.moment2) == ones);
    CHECK(Machine::read(args.params) == ones);
  }
}

TEST_CASE("updates refuse ranges that overlap or leave the state, and moments that their rule lacks",
          "[update]") {
  Machine m(kernels::Isa::portable, 1);
  const Tensor x = m.tensor(DType::f32, {10}, Values(10, 1.0));
  kernels::ParamUpdate args{.ranges = {},
                            .grads = x,
                            .master = x,
                            .moment1 = x,
                            .moment2 = x,
                            .params = {},
                            .control = control_tensor(m, 1.0f, 0)};
  const std::vector<kernels::UpdateRange> overlapping{{0, 5, 0}, {4, 2, 0}}, outside{{0, 11, 0}};
  args.ranges = overlapping;
  CHECK_THROWS_AS(m.backend().param_update(m.stream(), args), std::logic_error);
  args.ranges = outside;
  CHECK_THROWS_AS(m.backend().param_update(m.stream(), args), std::logic_error);
  // bf16 master weights are the parameters: separate parameters are refused.
  args.ranges = {};
  args.master = args.params = m.tensor(DType::bf16, {10}, Values(10, 1.0));
  CHECK_THROWS_AS(m.backend().param_update(m.stream(), args), std::logic_error);
  args.params = {};
  CHECK_NOTHROW(m.backend().param_update(m.stream(), args));
  args.rule = UpdateRule::lion;
  CHECK_THROWS_AS(m.backend().param_update(m.stream(), args), std::logic_error);
  args.moment2 = {};
  CHECK_NOTHROW(m.backend().param_update(m.stream(), args));
  args.rule = UpdateRule::adamw;
  CHECK_THROWS_AS(m.backend().param_update(m.stream(), args), std::logic_error);
  args.moment2 = x;
  args.moment1 = m.tensor(DType::bf16, {10}, Values(10, 1.0));
  CHECK_THROWS_AS(m.backend().param_update(m.stream(), args), std::logic_error);
}

namespace {

/// A state in bf16 of n elements with gradients that move each weight by about lr.
struct NarrowState {
  Values grads, master, moment1, moment2;
  explicit NarrowState(std::int64_t n)
      : grads(normal_values(n, 1, DType::bf16)),
        master(normal_values(n, 2, DType::bf16)),
        moment1(normal_values(n, 3, DType::bf16)),
        moment2(normal_values(n, 4, DType::bf16)) {
    for (double& v : moment2) v = std::abs(v) + 0.5;
    moment2 = rounded(moment2, DType::bf16);
  }
};

struct Updated {
  Values master, moment2;  ///< `moment2`: the rule's last moment
  bool operator==(const Updated&) const = default;
};

Updated update_narrow(Machine& m, const NarrowState& state, const std::vector<kernels::UpdateRange>& ranges,
                      kernels::Rounding rounding, std::int64_t step, float lr,
                      UpdateRule rule = UpdateRule::adamw) {
  const std::int64_t n = static_cast<std::int64_t>(state.master.size());
  const kernels::ParamUpdate args{
      .ranges = ranges,
      .grads = m.tensor(DType::bf16, {n}, state.grads),
      .master = m.tensor(DType::bf16, {n}, state.master),
      .moment1 = m.tensor(DType::bf16, {n}, state.moment1),
      .moment2 = has_second_moment(rule) ? m.tensor(DType::bf16, {n}, state.moment2) : Tensor{},
      .params = {},
      .control = control_tensor(m, 1.0f, 0),
      .rule = rule,
      .lr = lr,
      .beta1 = 0.9f,
      .beta2 = 0.999f,
      .eps = 1e-8f,
      .step = step,
      .rounding = rounding};
  m.backend().param_update(m.stream(), args);
  return {Machine::read(args.master), Machine::read(args.moment2.defined() ? args.moment2 : args.moment1)};
}

kernels::UpdateRange tensor_range(std::int64_t begin, std::int64_t count, std::int64_t first,
                                  std::uint64_t key) {
  return {.begin = begin,
          .count = count,
          .weight_decay = 0,
          .key = key,
          .first = first,
          .columns = count,
          .stride = count};
}

}  // namespace

TEST_CASE("stochastic rounding gives a neighbour of the exact value, and is unbiased", "[update][rounding]") {
  const std::int64_t n = 1 << 16;
  const NarrowState state(n);
  const float lr = 1e-3f;
  const double b1 = 0.9f, b2 = 0.999f;
  for (const kernels::Isa isa : instruction_sets()) {
    Machine m(isa, 2);
    const Updated got =
        update_narrow(m, state, {tensor_range(0, n, 0, 77)}, kernels::Rounding::stochastic, 5, lr);
    const Updated nearest =
        update_narrow(m, state, {tensor_range(0, n, 0, 77)}, kernels::Rounding::nearest, 5, lr);
    // For weights and moments: the mean of (rounded - exact) in units of the gap between neighbours. The
    // variance is at most a quarter.
    double weight_bias = 0, moment_bias = 0;
    std::int64_t outside = 0, stuck = 0, stuck_nearest = 0;
    const auto gap = [](double x) { return std::exp2(std::floor(std::log2(std::abs(x))) - 7); };
    for (std::size_t i = 0; i < state.master.size(); ++i) {
      const double m1 = b1 * state.moment1[i] + (1 - b1) * state.grads[i];
      const double m2 = b2 * state.moment2[i] + (1 - b2) * state.grads[i] * state.grads[i];
      const double w = state.master[i] -
                       lr * (m1 / (1 - std::pow(b1, 5))) / (std::sqrt(m2 / (1 - std::pow(b2, 5))) + 1e-8);
      // An fp32 computation may rarely end beyond a neighbour, one gap further.
      outside += std::abs(got.master[i] - w) > gap(w) * (1 + 1e-3) ||
                 std::abs(got.moment2[i] - m2) > gap(m2) * (1 + 1e-3);
      weight_bias += (got.master[i] - w) / gap(w);
      moment_bias += (got.moment2[i] - m2) / gap(m2);
      stuck += got.master[i] == state.master[i];
      stuck_nearest += nearest.master[i] == state.master[i];
    }
    CHECK(outside == 0);
    const double five_sigma = 5 * 0.5 / std::sqrt(static_cast<double>(n));
    CHECK(std::abs(weight_bias / static_cast<double>(n)) < five_sigma);
    CHECK(std::abs(moment_bias / static_cast<double>(n)) < five_sigma);
    // Most updates are below half a gap: rounding to nearest loses them.
    CHECK(stuck_nearest > n / 2);
    CHECK(stuck < stuck_nearest);
  }
}

TEST_CASE("stochastic rounding keeps the mean of what a rule with one moment changes by less than bf16 holds",
          "[update][rounding]") {
  const std::int64_t n = 1 << 16;
  const NarrowState state(n);
  const float lr = 1e-3f;
  const double b1 = 0.9f, b2 = 0.999f;
  // Of a difference of two values near 1, fp32 holds no more than 2^-22.
  const auto gap = [](double x) {
    return std::exp2(std::max(std::floor(std::log2(std::abs(x))) - 7, -22.0));
  };
  for (const RuleCase& rule : {RuleCase{UpdateRule::lion}, RuleCase{UpdateRule::sgd}})
    for (const kernels::Isa isa : instruction_sets()) {
      Machine m(isa, 2);
      const Updated got = update_narrow(m, state, {tensor_range(0, n, 0, 77)}, kernels::Rounding::stochastic,
                                        5, lr, rule.rule);
      double weight_bias = 0, moment_bias = 0;
      std::int64_t outside = 0;
      for (std::size_t i = 0; i < state.master.size(); ++i) {
        const double mean = b1 * state.moment1[i] + (1 - b1) * state.grads[i];
        const bool lion = rule.rule == UpdateRule::lion;
        const double m1 =
            lion ? b2 * state.moment1[i] + (1 - b2) * state.grads[i] : b1 * state.moment1[i] + state.grads[i];
        const double w = state.master[i] - lr * (!lion ? m1 : mean > 0 ? 1 : -1);
        outside += std::abs(got.master[i] - w) > gap(w) * (1 + 1e-3) ||
                   std::abs(got.moment2[i] - m1) > gap(m1) * (1 + 1e-3);
        weight_bias += (got.master[i] - w) / gap(w);
        moment_bias += (got.moment2[i] - m1) / gap(m1);
      }
      CHECK(outside == 0);
      const double five_sigma = 5 * 0.5 / std::sqrt(static_cast<double>(n));
      CHECK(std::abs(weight_bias / static_cast<double>(n)) < five_sigma);
      CHECK(std::abs(moment_bias / static_cast<double>(n)) < five_sigma);
    }
}

TEST_CASE("stochastic rounding keeps values that bf16 holds exactly, and differs per step",
          "[update][rounding]") {
  const std::int64_t n = 4099;
  const NarrowState state(n);
  Machine m(kernels::Isa::portable, 1);
  const std::vector<kernels::UpdateRange> ranges{tensor_range(0, n, 0, 9)};
  using kernels::Rounding;
  CHECK(update_narrow(m, state, ranges, Rounding::stochastic, 3, 0.0f).master == state.master);
  const Updated third = update_narrow(m, state, ranges, Rounding::stochastic, 3, 1e-3f);
  CHECK(third == update_narrow(m, state, ranges, Rounding::stochastic, 3, 1e-3f));
  CHECK_FALSE(third.moment2 == update_narrow(m, state, ranges, Rounding::stochastic, 4, 1e-3f).moment2);
  CHECK_FALSE(third.moment2 ==
              update_narrow(m, state, {tensor_range(0, n, 0, 10)}, Rounding::stochastic, 3, 1e-3f).moment2);
}

TEST_CASE("stochastic rounding depends on an element's place in its tensor, not on the rank that holds it",
          "[update][rounding]") {
  // A tensor of 66 x 42; ranks hold parts of rows, and its left and right columns.
  const std::int64_t rows = 66, columns = 42, n = rows * columns;
  const NarrowState whole(n);
  const std::uint64_t key = 5;
  using kernels::Rounding;
  for (const kernels::Isa isa : instruction_sets()) {
    Machine m(isa, 3);
    const Updated expected =
        update_narrow(m, whole, {tensor_range(0, n, 0, key)}, Rounding::stochastic, 2, 1e-3f);
    std::vector<kernels::UpdateRange> pieces;
    for (const auto& [begin, end] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}, {1, 42}, {42, 1003}, {1003, n}})
      pieces.push_back(tensor_range(begin, end - begin, begin, key));
    CHECK(update_narrow(m, whole, pieces, Rounding::stochastic, 2, 1e-3f) == expected);
    for (const auto& [first, width] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 20}, {20, 22}}) {
      NarrowState part(0);
      Updated wanted;
      for (std::int64_t i = 0; i < rows * width; ++i) {
        const auto at = static_cast<std::size_t>(i / width * columns + first + i % width);
        part.grads.push_back(whole.grads[at]), part.master.push_back(whole.master[at]);
        part.moment1.push_back(whole.moment1[at]), part.moment2.push_back(whole.moment2[at]);
        wanted.master.push_back(expected.master[at]), wanted.moment2.push_back(expected.moment2[at]);
      }
      const kernels::UpdateRange range{.begin = 0,
                                       .count = rows * width,
                                       .weight_decay = 0,
                                       .key = key,
                                       .first = first,
                                       .columns = width,
                                       .stride = columns};
      CHECK(update_narrow(m, part, {range}, Rounding::stochastic, 2, 1e-3f) == wanted);
    }
  }
}

}  // namespace trainerd::test
