#include <limits>

#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::StepControlValues;

StepControlValues control_of(Machine& m, const Values& sums, const std::vector<std::int64_t>& first_block,
                             double loss, double clip) {
  const Tensor values = m.empty(DType::u8, {static_cast<std::int64_t>(sizeof(StepControlValues))});
  const Tensor total = m.empty(DType::f64, {1}), nonfinite = m.empty(DType::i32, {1});
  m.backend().total_square_sum(m.stream(),
                         {.sums = m.tensor(DType::f64, {static_cast<std::int64_t>(sums.size())}, sums),
                          .first_block = first_block,
                          .total = total,
                          .nonfinite = nonfinite});
  m.backend().step_control(m.stream(), {.square_sum = total,
                                        .loss = m.tensor(DType::f64, {1}, {loss}),
                                        .nonfinite = nonfinite,
                                        .clip_norm = clip,
                                        .values = values});
  StepControlValues control;
  std::memcpy(&control, values.data, sizeof(control));
  return control;
}

Tensor control_tensor(Machine& m, float factor, int skip) {
  StepControlValues control;
  control.grad_factor = factor;
  control.skip = skip;
  const Tensor values = m.empty(DType::u8, {static_cast<std::int64_t>(sizeof(control))});
  std::memcpy(values.data, &control, sizeof(control));
  return values;
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

TEST_CASE("adamw matches its float64 formula on its ranges and leaves the rest", "[update]") {
  const std::int64_t n = 16384 + 1000;
  // A gap at the front, one in the middle that crosses a block, ranges that end and begin within one block.
  const std::vector<kernels::UpdateRange> ranges{
      {5, 1, 0.0f}, {6, 300, 0.1f}, {1000, 15000, 0.01f}, {16390, 900, 0.5f}};
  const float lr = 0.01f, beta1 = 0.9f, beta2 = 0.99f, eps = 1e-3f, factor = 0.5f;
  const std::int64_t step = 3;
  for (const DType grad_dtype : kActivationDtypes)
    for (const DType param_dtype : kActivationDtypes) {
      const Values grads = normal_values(n, 1, grad_dtype), master = normal_values(n, 2, DType::f32);
      const Values moment1 = normal_values(n, 3, DType::f32);
      Values moment2 = normal_values(n, 4, DType::f32);
      for (double& v : moment2) v = std::abs(v);
      const Values params = normal_values(n, 5, param_dtype);
      Values w = master, m1 = moment1, m2 = moment2, p = params;
      for (const kernels::UpdateRange& range : ranges)
        for (auto i = static_cast<std::size_t>(range.begin);
             i < static_cast<std::size_t>(range.begin + range.count); ++i) {
          const double b1 = beta1, b2 = beta2, g = grads[i] * factor;
          m1[i] = b1 * m1[i] + (1 - b1) * g;
          m2[i] = b2 * m2[i] + (1 - b2) * g * g;
          const double mean = m1[i] / (1 - std::pow(b1, step)), square = m2[i] / (1 - std::pow(b2, step));
          w[i] -= lr * (mean / (std::sqrt(square) + eps) + range.weight_decay * w[i]);
          p[i] = w[i];
        }
      check_operator([&](Machine& m) {
        kernels::AdamwUpdate args{.ranges = ranges,
                                  .grads = m.tensor(grad_dtype, {n}, grads),
                                  .master = m.tensor(DType::f32, {n}, master),
                                  .moment1 = m.tensor(DType::f32, {n}, moment1),
                                  .moment2 = m.tensor(DType::f32, {n}, moment2),
                                  .params = m.tensor(param_dtype, {n}, params),
                                  .control = control_tensor(m, factor, 0),
                                  .lr = lr,
                                  .beta1 = beta1,
                                  .beta2 = beta2,
                                  .eps = eps,
                                  .step = step};
        m.backend().adamw_update(m.stream(), args);
        std::vector<Output> outputs{{"master", args.master, w},
                                    {"moment1", args.moment1, m1},
                                    {"moment2", args.moment2, m2},
                                    {"params", args.params, p}};
        // Elements outside every range keep their bits.
        const Values after = Machine::read(args.master);
        for (const std::size_t i : {std::size_t{0}, std::size_t{4}, std::size_t{306}, std::size_t{999},
                                    std::size_t{16389}, std::size_t{17383}})
          CHECK(after[i] == master[i]);
        args.params = {};
        args.master = m.tensor(DType::f32, {n}, master);
        args.moment1 = m.tensor(DType::f32, {n}, moment1);
        args.moment2 = m.tensor(DType::f32, {n}, moment2);
        m.backend().adamw_update(m.stream(), args);
        outputs.push_back({"master without params", args.master, w});
        return outputs;
      });
    }
}

TEST_CASE("adamw does nothing when the control says skip", "[update]") {
  const std::vector<kernels::UpdateRange> ranges{{0, 20, 0.1f}};
  for (const kernels::Isa isa : instruction_sets()) {
    Machine m(isa, 1);
    const Values ones(20, 1.0), nans(20, std::nan(""));
    const kernels::AdamwUpdate args{.ranges = ranges,
                                    .grads = m.tensor(DType::f32, {20}, nans),
                                    .master = m.tensor(DType::f32, {20}, ones),
                                    .moment1 = m.tensor(DType::f32, {20}, ones),
                                    .moment2 = m.tensor(DType::f32, {20}, ones),
                                    .params = m.tensor(DType::bf16, {20}, ones),
                                    .control = control_tensor(m, 1.0f, 1),
                                    .lr = 0.1f,
                                    .step = 1};
    m.backend().adamw_update(m.stream(), args);
    CHECK(Machine::read(args.master) == ones);
    CHECK(Machine::read(args.moment1) == ones);
    CHECK(Machine::read(args.moment2) == ones);
    CHECK(Machine::read(args.params) == ones);
  }
}

TEST_CASE("adamw refuses ranges that overlap or leave the state", "[update]") {
  Machine m(kernels::Isa::portable, 1);
  const Tensor x = m.tensor(DType::f32, {10}, Values(10, 1.0));
  kernels::AdamwUpdate args{.ranges = {},
                            .grads = x,
                            .master = x,
                            .moment1 = x,
                            .moment2 = x,
                            .params = {},
                            .control = control_tensor(m, 1.0f, 0)};
  const std::vector<kernels::UpdateRange> overlapping{{0, 5, 0}, {4, 2, 0}}, outside{{0, 11, 0}};
  args.ranges = overlapping;
  CHECK_THROWS_AS(m.backend().adamw_update(m.stream(), args), std::logic_error);
  args.ranges = outside;
  CHECK_THROWS_AS(m.backend().adamw_update(m.stream(), args), std::logic_error);
}

}  // namespace trainerd::test
