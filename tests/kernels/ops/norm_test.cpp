#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::NormKind;
using kernels::WriteMode;

struct NormCase {
  NormKind kind;
  DType dtype, gradients;  ///< of activations and weights; of the weights' gradients
  std::int64_t rows, columns;
  double offset = 0;  ///< added to the weight
};

// Tails, one element, and more rows than one partial sum covers.
std::vector<NormCase> cases() {
  std::vector<NormCase> all;
  for (const NormKind kind : {NormKind::rms, NormKind::layer})
    for (const DType dtype : kActivationDtypes) {
      all.push_back({kind, dtype, DType::f32, 1, 1});
      all.push_back({kind, dtype, dtype, 5, 37});
      all.push_back({kind, dtype, DType::f32, 70, 16});
      all.push_back({kind, dtype, dtype, 5, 37, 1.0});
      all.push_back({kind, dtype, DType::f32, 3, 64, 1.0});
    }
  all.push_back({NormKind::rms, DType::f32, DType::bf16, 2, 48});
  return all;
}

struct Statistics {
  Values mean, rstd;
};

Statistics statistics(const NormCase& c, const Values& x, double eps) {
  const auto d = static_cast<std::size_t>(c.columns);
  Statistics s;
  for (std::size_t t = 0; t < static_cast<std::size_t>(c.rows); ++t) {
    double mean = 0, squares = 0;
    if (c.kind == NormKind::layer)
      for (std::size_t i = 0; i < d; ++i) mean += x[t * d + i] / static_cast<double>(d);
    for (std::size_t i = 0; i < d; ++i) squares += (x[t * d + i] - mean) * (x[t * d + i] - mean);
    s.mean.push_back(mean);
    s.rstd.push_back(1 / std::sqrt(squares / static_cast<double>(d) + eps));
  }
  return s;
}

Values norm(const NormCase& c, const Values& x, const Values& weight, const Values& bias, double eps) {
  const auto d = static_cast<std::size_t>(c.columns);
  const Statistics s = statistics(c, x, eps);
  Values y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    y[i] = (x[i] - s.mean[i / d]) * s.rstd[i / d] * (c.offset + weight[i % d]) +
           (bias.empty() ? 0.0 : bias[i % d]);
  return y;
}

constexpr float kEps = 1e-2f;  // large enough to be seen in the result

}  // namespace

TEST_CASE("add_norm forward matches its float64 definition, with and without delta and bias", "[norm]") {
  for (const NormCase& c : cases()) {
    const Shape shape{c.rows, c.columns}, row{c.columns}, column{c.rows};
    const Values residual = normal_values(shape.numel(), 1, c.dtype, 1.0, 0.5);
    const Values delta = normal_values(shape.numel(), 2, c.dtype);
    const Values weight = normal_values(c.columns, 3, c.dtype, 0.3, 1.0 - c.offset),
                 bias = normal_values(c.columns, 4, c.dtype);
    const Values total = rounded(sum(residual, delta), c.dtype);
    check_operator([&](Machine& m) {
      const Tensor w = m.tensor(c.dtype, row, weight), b = m.tensor(c.dtype, row, bias);
      const Tensor stored = m.empty(c.dtype, shape), y = m.empty(c.dtype, shape);
      const Tensor plain = m.empty(c.dtype, shape);
      const Tensor mean = m.empty(DType::f32, column), rstd = m.empty(DType::f32, column);
      const Tensor mean2 = m.empty(DType::f32, column), rstd2 = m.empty(DType::f32, column);
      const Tensor in_place = m.tensor(c.dtype, shape, residual), y2 = m.empty(c.dtype, shape);
      const Tensor d = m.tensor(c.dtype, shape, delta);
      kernels::AddNormForward args{.kind = c.kind,
                                   .eps = kEps,
                                   .residual_TD = m.tensor(c.dtype, shape, residual),
                                   .delta_TD = d,
                                   .weight_D = w,
                                   .weight_offset = static_cast<float>(c.offset),
                                   .bias_D = b,
                                   .sum_TD = stored,
                                   .y_TD = y,
                                   .mean_T = mean,
                                   .rstd_T = rstd};
      m.backend().add_norm_forward(m.stream(), args);
      args.residual_TD = args.sum_TD = in_place;
      args.y_TD = y2;
      m.backend().add_norm_forward(m.stream(), args);
      args = {.kind = c.kind,
              .eps = kEps,
              .residual_TD = m.tensor(c.dtype, shape, residual),
              .delta_TD = {},
              .weight_D = w,
              .weight_offset = static_cast<float>(c.offset),
              .bias_D = {},
              .sum_TD = {},
              .y_TD = plain,
              .mean_T = mean2,
              .rstd_T = rstd2};
      m.backend().add_norm_forward(m.stream(), args);
      const Statistics s = statistics(c, total, kEps);
      std::vector<Output> outputs{
          {"sum", stored, total},
          {"y", y, norm(c, total, weight, bias, kEps), c.columns},
          {"sum in place", in_place, total},
          {"y of the sum in place", y2, norm(c, total, weight, bias, kEps), c.columns},
          {"y without delta and bias", plain, norm(c, residual, weight, {}, kEps), c.columns},
          {"rstd", rstd, s.rstd, c.columns}};
      if (c.kind == NormKind::layer) outputs.push_back({"mean", mean, s.mean, c.columns});
      return outputs;
    });
  }
}

TEST_CASE("add_norm backward matches finite differences in its input, weight and bias", "[norm]") {
  for (const NormCase& c : cases()) {
    const Shape shape{c.rows, c.columns}, row{c.columns}, column{c.rows};
    const Values x = normal_values(shape.numel(), 5, c.dtype, 1.0, 0.5);
    const Values dy = normal_values(shape.numel(), 6, c.dtype);
    const Values dsum = normal_values(shape.numel(), 7, c.dtype);
    const Values weight = normal_values(c.columns, 8, c.dtype, 0.3, 1.0 - c.offset),
                 bias = normal_values(c.columns, 9, c.dtype);
    const Values before = normal_values(c.columns, 10, c.gradients);
    // The forward pass's statistics in fp32, as the backward pass gets them.
    const Statistics s = statistics(c, x, kEps);

    const Values dx = sum(
        numeric_gradient([&](const Values& v) { return dot(norm(c, v, weight, bias, kEps), dy); }, x), dsum);
    const Values dx_alone =
        numeric_gradient([&](const Values& v) { return dot(norm(c, v, weight, bias, kEps), dy); }, x);
    const Values dweight =
        numeric_gradient([&](const Values& v) { return dot(norm(c, x, v, bias, kEps), dy); }, weight);
    const Values dbias =
        numeric_gradient([&](const Values& v) { return dot(norm(c, x, weight, v, kEps), dy); }, bias);

    check_operator([&](Machine& m) {
      const bool layer = c.kind == NormKind::layer;
      const Tensor dw = m.tensor(c.gradients, row, before), db = m.tensor(c.gradients, row, before);
      const Tensor dw2 = m.empty(c.gradients, row), dx2 = m.tensor(c.dtype, shape, dy);
      kernels::AddNormBackward args{.kind = c.kind,
                                    .dy_TD = m.tensor(c.dtype, shape, dy),
                                    .dsum_TD = m.tensor(c.dtype, shape, dsum),
                                    .sum_TD = m.tensor(c.dtype, shape, x),
                                    .weight_D = m.tensor(c.dtype, row, weight),
                                    .weight_offset = static_cast<float>(c.offset),
                                    .mean_T = layer ? m.tensor(DType::f32, column, s.mean) : Tensor{},
                                    .rstd_T = m.tensor(DType::f32, column, s.rstd),
                                    .dx_TD = m.empty(c.dtype, shape),
                                    .dweight_D = dw,
                                    .dbias_D = db,
                                    .mode = WriteMode::accumulate};
      m.backend().add_norm_backward(m.stream(), args);
      CHECK(m.scratch().high_water() == kernels::align_up(scratch_bytes(args, m.backend().target())));
      std::vector<Output> outputs{{"dx", args.dx_TD, dx, c.columns},
                                  {"dweight added to", dw, sum(before, dweight), c.rows},
                                  {"dbias added to", db, sum(before, dbias), c.rows}};
      // Without dsum and the bias gradient; results assigned; dx in place of dy.
      args.dsum_TD = args.dbias_D = {};
      args.dy_TD = args.dx_TD = dx2;
      args.dweight_D = dw2;
      args.mode = WriteMode::assign;
      m.backend().add_norm_backward(m.stream(), args);
      outputs.push_back({"dx in place of dy", dx2, dx_alone, c.columns});
      outputs.push_back({"dweight assigned", dw2, dweight, c.rows});
      // dx in place of dsum.
      args.dy_TD = m.tensor(c.dtype, shape, dy);
      args.dsum_TD = args.dx_TD = m.tensor(c.dtype, shape, dsum);
      m.backend().add_norm_backward(m.stream(), args);
      outputs.push_back({"dx in place of dsum", args.dx_TD, dx, c.columns});
      return outputs;
    });
  }
}

TEST_CASE("layer norm keeps its variance despite a large mean", "[norm]") {
  const NormCase c{NormKind::layer, DType::f32, DType::f32, 3, 100};
  const Values x = normal_values(300, 11, DType::f32, 1.0, 1000.0), weight(100, 1.0);
  check_operator([&](Machine& m) {
    const Tensor y = m.empty(DType::f32, {3, 100}), rstd = m.empty(DType::f32, {3});
    m.backend().add_norm_forward(m.stream(), {.kind = c.kind,
                                              .eps = 0.0f,
                                              .residual_TD = m.tensor(DType::f32, {3, 100}, x),
                                              .delta_TD = {},
                                              .weight_D = m.tensor(DType::f32, {100}, weight),
                                              .bias_D = {},
                                              .sum_TD = {},
                                              .y_TD = y,
                                              .mean_T = m.empty(DType::f32, {3}),
                                              .rstd_T = rstd});
    return std::vector<Output>{{"rstd", rstd, statistics(c, x, 0.0).rstd, 100}};
  });
}

TEST_CASE("weights of another dtype than the activations are refused", "[norm]") {
  for (const auto& [dtype, other] :
       {std::pair{DType::f32, DType::bf16}, {DType::bf16, DType::f32}, {DType::f16, DType::f32}}) {
    Machine m(instruction_sets().back(), 1);
    const Tensor x = m.empty(dtype, {2, 8}), y = m.empty(dtype, {2, 8}), rstd = m.empty(DType::f32, {2});
    kernels::AddNormForward args{.kind = NormKind::rms,
                                 .eps = kEps,
                                 .residual_TD = x,
                                 .delta_TD = {},
                                 .weight_D = m.empty(other, {8}),
                                 .bias_D = {},
                                 .sum_TD = {},
                                 .y_TD = y,
                                 .mean_T = {},
                                 .rstd_T = rstd};
    CHECK_THROWS_AS(m.backend().add_norm_forward(m.stream(), args), std::logic_error);
    args.weight_D = m.empty(dtype, {8});
    CHECK_NOTHROW(m.backend().add_norm_forward(m.stream(), args));
  }
}

}  // namespace trainerd::test
