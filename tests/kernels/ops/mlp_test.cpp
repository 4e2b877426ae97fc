#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

struct Size {
  std::int64_t rows, columns;
};

// Whole vectors, tails, single elements, and more than one block.
constexpr Size kSizes[] = {{1, 1}, {3, 16}, {5, 37}, {2, 64}};

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

Values glu(const Values& gate_up, Size size, kernels::Gate gate = kernels::Gate::silu) {
  const std::size_t f = static_cast<std::size_t>(size.columns);
  Values act(static_cast<std::size_t>(size.rows) * f);
  for (std::size_t i = 0; i < act.size(); ++i) {
    const double g = gate_up[i / f * 2 * f + i % f], u = gate_up[i / f * 2 * f + f + i % f];
    const double clamped = std::min(g, 7.0);
    if (gate == kernels::Gate::clamped)
      act[i] = clamped / (1 + std::exp(-1.702 * clamped)) * (std::clamp(u, -7.0, 7.0) + 1);
    else act[i] = (gate == kernels::Gate::silu ? g / (1 + std::exp(-g)) : gelu(g)) * u;
  }
  return act;
}

Values gelu(const Values& x) {
  Values act(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) act[i] = gelu(x[i]);
  return act;
}

}  // namespace

TEST_CASE("glu forward and backward match their float64 definition and its finite differences", "[mlp]") {
  const auto gate = GENERATE(kernels::Gate::silu, kernels::Gate::gelu, kernels::Gate::clamped);
  const double spread = gate == kernels::Gate::clamped ? 8.0 : 2.0;  // beyond the limits and within
  for (const DType dtype : kActivationDtypes)
    for (const Size size : kSizes) {
      const Shape wide{size.rows, 2 * size.columns}, narrow{size.rows, size.columns};
      const Values gate_up = normal_values(wide.numel(), 1, dtype, spread),
                   dact = normal_values(narrow.numel(), 2, dtype);
      const Values act = glu(gate_up, size, gate);
      const Values gradient =
          numeric_gradient([&](const Values& x) { return dot(glu(x, size, gate), dact); }, gate_up);
      check_operator([&](Machine& m) {
        const Tensor x = m.tensor(dtype, wide, gate_up), d = m.tensor(dtype, narrow, dact);
        const Tensor forward = m.empty(dtype, narrow), again = m.empty(dtype, narrow),
                     dx = m.empty(dtype, wide);
        m.backend().glu_forward(m.stream(), {.gate = gate, .gate_up_T2F = x, .act_TF = forward});
        m.backend().glu_backward(
            m.stream(), {.gate = gate, .dact_TF = d, .gate_up_T2F = x, .dgate_up_T2F = dx, .act_TF = again});
        const Tensor in_place = m.tensor(dtype, wide, gate_up);
        m.backend().glu_backward(
            m.stream(),
            {.gate = gate, .dact_TF = d, .gate_up_T2F = in_place, .dgate_up_T2F = in_place, .act_TF = {}});
        return std::vector<Output>{{"act", forward, act},
                                   {"act again", again, act},
                                   {"dgate_up", dx, gradient},
                                   {"dgate_up in place", in_place, gradient}};
      });
    }
}

TEST_CASE("a gate or an up projection that is no number stays none", "[mlp]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const kernels::Gate gate : {kernels::Gate::silu, kernels::Gate::gelu, kernels::Gate::clamped})
    for (const Values& gate_up : {Values{nan, 1}, Values{1, nan}})
      for (const kernels::Isa isa : instruction_sets()) {
        Machine m(isa, 1);
        const Tensor x = m.tensor(DType::f32, {1, 2}, gate_up), act = m.empty(DType::f32, {1, 1});
        m.backend().glu_forward(m.stream(), {.gate = gate, .gate_up_T2F = x, .act_TF = act});
        CHECK(std::isnan(Machine::read(act)[0]));
      }
}

TEST_CASE("glu leaves rows alone that are not in use", "[mlp]") {
  const std::int64_t rows = 5, used = 3, ffn = 37;
  for (const DType dtype : kActivationDtypes)
    for (const std::int64_t of : {std::int64_t{0}, used, rows}) {
      const Values gate_up = normal_values(rows * 2 * ffn, 1, dtype),
                   dact = normal_values(rows * ffn, 2, dtype);
      const Values all = glu(gate_up, {rows, ffn});
      Values act(all.size(), 9.0), dgate_up = gate_up;
      std::copy_n(all.begin(), of * ffn, act.begin());
      const Values gradient = numeric_gradient(
          [&](const Values& x) {
            return dot(glu(x, {rows, ffn}), dact);
          },
          gate_up);
      std::copy_n(gradient.begin(), of * 2 * ffn, dgate_up.begin());
      check_operator([&](Machine& m) {
        const Tensor count = m.ids({static_cast<std::int32_t>(of)}),
                     x = m.tensor(dtype, {rows, 2 * ffn}, gate_up),
                     y = m.tensor(dtype, {rows, ffn}, Values(act.size(), 9.0)),
                     d = m.tensor(dtype, {rows, ffn}, dact);
        m.backend().glu_forward(m.stream(), {.gate_up_T2F = x, .act_TF = y, .used_rows = count});
        m.backend().glu_backward(
            m.stream(),
            {.dact_TF = d, .gate_up_T2F = x, .dgate_up_T2F = x, .act_TF = {}, .used_rows = count});
        return std::vector<Output>{{"act", y, act}, {"dgate_up", x, dgate_up}};
      });
    }
}

TEST_CASE("gelu forward and backward match their float64 definition and its finite differences", "[mlp]") {
  for (const DType dtype : kActivationDtypes)
    for (const Size size : kSizes) {
      const Shape shape{size.rows, size.columns};
      const Values x = normal_values(shape.numel(), 3, dtype, 2.0),
                   dact = normal_values(shape.numel(), 4, dtype);
      const Values gradient = numeric_gradient([&](const Values& v) { return dot(gelu(v), dact); }, x);
      check_operator([&](Machine& m) {
        const Tensor in = m.tensor(dtype, shape, x), d = m.tensor(dtype, shape, dact);
        const Tensor act = m.empty(dtype, shape), dx = m.empty(dtype, shape);
        m.backend().gelu_forward(m.stream(), {.x_TF = in, .act_TF = act});
        m.backend().gelu_backward(m.stream(), {.dact_TF = d, .x_TF = in, .dx_TF = dx});
        m.backend().gelu_backward(m.stream(), {.dact_TF = d, .x_TF = in, .dx_TF = d});
        return std::vector<Output>{{"act", act, gelu(x)}, {"dx", dx, gradient}, {"dx in place", d, gradient}};
      });
    }
}

TEST_CASE("activation functions keep their limits at large inputs", "[mlp]") {
  for (const kernels::Isa isa : instruction_sets()) {
    Machine m(isa, 1);
    const Tensor x = m.tensor(DType::f32, {1, 4}, {-1e4, 1e4, -95.0, 95.0});
    const Tensor act = m.empty(DType::f32, {1, 4});
    m.backend().gelu_forward(m.stream(), {.x_TF = x, .act_TF = act});
    CHECK(Machine::read(act) == Values{0.0, 1e4, 0.0, 95.0});
    const Tensor gate_up = m.tensor(DType::f32, {1, 4}, {-1e4, 1e4, 2.0, 2.0});
    const Tensor out = m.empty(DType::f32, {1, 2});
    m.backend().glu_forward(m.stream(), {.gate_up_T2F = gate_up, .act_TF = out});
    CHECK(Machine::read(out) == Values{0.0, 2e4});
  }
}

TEST_CASE("activation functions over many blocks equal those of one row at a time", "[mlp]") {
  check_operator([](Machine& m) {
    const std::int64_t rows = 67, ffn = 1000;
    const Values gate_up = normal_values(rows * 2 * ffn, 5, DType::bf16);
    const Tensor x = m.tensor(DType::bf16, {rows, 2 * ffn}, gate_up), act = m.empty(DType::bf16, {rows, ffn});
    m.backend().glu_forward(m.stream(), {.gate_up_T2F = x, .act_TF = act});
    return std::vector<Output>{{"act", act, glu(gate_up, {rows, ffn})}};
  });
}

}  // namespace trainerd::test
