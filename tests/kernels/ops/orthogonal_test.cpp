#include <limits>

#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::CopyBoxes;
using kernels::MatrixBox;
using kernels::UpdateRange;

}  // namespace

TEST_CASE("momentum and its direction match their float64 formulas", "[orthogonal]") {
  const std::int64_t n = 16384 + 37;
  for (const DType grad_dtype : kStateDtypes)
    for (const DType momentum_dtype : kStateDtypes)
      for (const bool nesterov : {false, true}) {
        const Values grads = normal_values(n, 1, grad_dtype), momentum = normal_values(n, 2, momentum_dtype);
        const double mu = static_cast<double>(0.9f), factor = 0.5;
        Values kept = momentum, direction(kept.size());
        for (std::size_t i = 0; i < kept.size(); ++i) {
          const double g = (1 - mu) * grads[i] * factor;
          kept[i] = mu * momentum[i] + g;
          direction[i] = nesterov ? mu * kept[i] + g : kept[i];
        }
        check_operator([&](Machine& m) {
          const kernels::MomentumUpdate args{.grads = m.tensor(grad_dtype, {n}, grads),
                                             .momentum = m.tensor(momentum_dtype, {n}, momentum),
                                             .direction = m.empty(DType::f32, {n}),
                                             .control = control_tensor(m, 0.5f, 0),
                                             .mu = 0.9f,
                                             .nesterov = nesterov};
          m.backend().momentum_update(m.stream(), args);
          return std::vector<Output>{{"momentum", args.momentum, kept},
                                     {"direction", args.direction, direction}};
        });
      }
}

TEST_CASE("a skipped step leaves momentum and weights unchanged, and its direction is zero", "[orthogonal]") {
  const Values ones(20, 1.0), nans(20, std::numeric_limits<double>::quiet_NaN());
  for (const kernels::Isa isa : instruction_sets()) {
    Machine m(isa, 2);
    const Tensor control = control_tensor(m, 1.0f, 1), momentum = m.tensor(DType::f32, {20}, ones),
                 direction = m.empty(DType::f32, {20}), master = m.tensor(DType::f32, {20}, ones);
    m.backend().momentum_update(m.stream(), {.grads = m.tensor(DType::f32, {20}, nans),
                                             .momentum = momentum,
                                             .direction = direction,
                                             .control = control});
    CHECK(Machine::read(momentum) == ones);
    CHECK(Machine::read(direction) == Values(20, 0.0));
    const std::vector<UpdateRange> ranges{{.begin = 0, .count = 20}};
    m.backend().direction_update(m.stream(), {.ranges = ranges,
                                              .direction = momentum,
                                              .master = master,
                                              .params = {},
                                              .control = control,
                                              .lr = 1.0f});
    CHECK(Machine::read(master) == ones);
  }
}

TEST_CASE("a direction update matches its float64 formula on its ranges and leaves the rest",
          "[orthogonal]") {
  const std::int64_t n = 40000;
  const std::vector<UpdateRange> ranges{{.begin = 1, .count = 16390, .weight_decay = 0.1f},
                                        {.begin = 16391, .count = 0, .weight_decay = 1.0f},
                                        {.begin = 20000, .count = 19999}};
  for (const DType master_dtype : kStateDtypes)
    for (const DType param_dtype : kActivationDtypes) {
      const Values direction = normal_values(n, 1, DType::f32), master = normal_values(n, 2, master_dtype);
      const Values params = normal_values(n, 3, param_dtype);
      Values w = master, p = params;
      const double lr = static_cast<double>(0.02f), scale = 1.5;
      for (const UpdateRange& range : ranges)
        for (std::int64_t k = range.begin; k < range.begin + range.count; ++k) {
          const auto i = static_cast<std::size_t>(k);
          w[i] -= lr * (scale * direction[i] + static_cast<double>(range.weight_decay) * w[i]);
          p[i] = w[i];
        }
      check_operator([&](Machine& m) {
        const bool narrow = master_dtype == DType::bf16;
        kernels::DirectionUpdate args{.ranges = ranges,
                                      .direction = m.tensor(DType::f32, {n}, direction),
                                      .master = m.tensor(master_dtype, {n}, master),
                                      .params = narrow ? Tensor{} : m.tensor(param_dtype, {n}, params),
                                      .control = control_tensor(m, 1.0f, 0),
                                      .lr = 0.02f,
                                      .scale = 1.5f,
                                      .step = 3};
        m.backend().direction_update(m.stream(), args);
        std::vector<Output> outputs{{"master", args.master, w}};
        if (!narrow) outputs.push_back({"params", args.params, p});
        return outputs;
      });
    }
}

TEST_CASE("stochastic rounding of a direction update depends on the element alone, and is unbiased",
          "[orthogonal]") {
  const std::int64_t n = 6000;
  const Values direction = normal_values(n, 1, DType::f32), master = normal_values(n, 2, DType::bf16);
  const std::vector<UpdateRange> whole{
      {.begin = 0, .count = n, .weight_decay = 0, .key = 9, .first = 0, .columns = n, .stride = n}};
  for (const kernels::Isa isa : instruction_sets()) {
    Machine m(isa, 1);
    const auto update = [&](const std::vector<UpdateRange>& ranges, std::int64_t step) {
      const Tensor w = m.tensor(DType::bf16, {n}, master);
      m.backend().direction_update(m.stream(), {.ranges = ranges,
                                                .direction = m.tensor(DType::f32, {n}, direction),
                                                .master = w,
                                                .params = {},
                                                .control = control_tensor(m, 1.0f, 0),
                                                .lr = 1e-3f,
                                                .step = step,
                                                .rounding = kernels::Rounding::stochastic});
      return Machine::read(w);
    };
    const Values got = update(whole, 3);
    CHECK(got != update(whole, 4));
    // The same elements, in ranges that do not begin at a vector boundary.
    CHECK(got ==
          update({{.begin = 0, .count = 7, .key = 9, .first = 0, .columns = 7, .stride = 7},
                  {.begin = 7, .count = n - 7, .key = 9, .first = 7, .columns = n - 7, .stride = n - 7}},
                 3));
    double bias = 0, moved = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      bias += got[i] - (master[i] - 1e-3 * direction[i]);
      moved += 1e-3 * std::abs(direction[i]);
    }
    // Each has a random error of less than 2^-8 |w|, with |w| < 4: the mean of 6000 is off by less than 2^-6
    // / sqrt(6000) * 4.
    CHECK(std::abs(bias) / static_cast<double>(n) < 0x1p-6 / std::sqrt(6000.0) * 4);
    CHECK(moved > 1);
  }
}

TEST_CASE("boxes go to their places in the matrix, plain and transposed, and back", "[orthogonal]") {
  const std::int64_t rows = 70, columns = 100;
  // A tall box, the end of a row, whole rows, the begin of a row; with gaps between them.
  const std::vector<MatrixBox> boxes{
      {5, 0, 0, 70, 33}, {2400, 0, 33, 1, 67}, {2500, 1, 33, 68, 67}, {7100, 69, 33, 1, 67}};
  const std::int64_t n = 7200;
  const Values packed = normal_values(n, 1, DType::f32);
  Values plain(static_cast<std::size_t>(rows * columns)), turned(plain.size()),
      back(static_cast<std::size_t>(n), 0.0);
  for (const MatrixBox& box : boxes)
    for (std::int64_t r = 0; r < box.rows; ++r)
      for (std::int64_t c = 0; c < box.columns; ++c) {
        const auto at = static_cast<std::size_t>(box.begin + r * box.columns + c);
        plain[static_cast<std::size_t>((box.row + r) * columns + box.column + c)] = packed[at];
        turned[static_cast<std::size_t>((box.column + c) * rows + box.row + r)] = packed[at];
        back[at] = packed[at];
      }
  for (const bool transposed : {false, true}) {
    check_operator([&](Machine& m) {
      const Tensor matrix = m.empty(DType::f32, transposed ? Shape{columns, rows} : Shape{rows, columns});
      CopyBoxes args{.to = CopyBoxes::To::matrix,
                     .boxes = boxes,
                     .packed = m.tensor(DType::f32, {n}, packed),
                     .matrix = matrix,
                     .transposed = transposed};
      m.backend().copy_boxes(m.stream(), args);
      args.to = CopyBoxes::To::packed;
      args.packed = m.tensor(DType::f32, {n}, Values(static_cast<std::size_t>(n), 0.0));
      m.backend().copy_boxes(m.stream(), args);
      return std::vector<Output>{{"matrix", matrix, transposed ? turned : plain},
                                 {"back", args.packed, back}};
    });
  }
}

TEST_CASE("a matrix is divided by its norm plus epsilon", "[orthogonal]") {
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{37}, std::int64_t{3 * 16384 + 5}}) {
    const Values x = normal_values(n, 1, DType::f32, 1e-3);
    double squares = 0;
    for (const double v : x) squares += v * v;
    const double norm = std::sqrt(squares) + static_cast<double>(0.01f);
    Values expected = x;
    for (double& v : expected) v /= norm;
    check_operator([&](Machine& m) {
      const Tensor y = m.tensor(DType::f32, {n}, x);
      m.backend().normalise(m.stream(), {.x = y, .eps = 0.01f});
      return std::vector<Output>{{"normalised", y, expected}};
    });
  }
  Machine m(kernels::Isa::portable, 1);
  const Tensor zeros = m.tensor(DType::f32, {5}, Values(5, 0.0));
  m.backend().normalise(m.stream(), {.x = zeros, .eps = 1e-7f});
  CHECK(Machine::read(zeros) == Values(5, 0.0));
}

}  // namespace trainerd::test
