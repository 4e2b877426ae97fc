#pragma once

// GEMMs of several shapes with their values in float64, for the tests of every world and for the CPU's own.

#include "tests/kernels/machine.h"

namespace trainerd::test::gemm_cases {

using kernels::GemmFormat;
using kernels::GemmRole;
using kernels::Weight;
using kernels::WriteMode;

struct Size {
  std::int64_t tokens, n, c;
};

// One element, odd sizes, whole panels (which can be packed), several token blocks with a tail, and columns
// of x and tokens beyond one block of a weight gradient.
constexpr Size kSizes[] = {{1, 1, 1},      {7, 33, 65},   {65, 64, 128},
                           {300, 192, 64}, {65, 7, 2100}, {2083, 17, 9}};

/// c[m, n] = a[m, k] b[k, n], each operand given by its element (row, column).
template <class A, class B>
inline Values product(std::int64_t m, std::int64_t n, std::int64_t k, const A& a, const B& b) {
  Values c(static_cast<std::size_t>(m * n), 0.0);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t l = 0; l < k; ++l)
      for (std::int64_t j = 0; j < n; ++j) c[static_cast<std::size_t>(i * n + j)] += a(i, l) * b(l, j);
  return c;
}

/// Element access to a row-major matrix.
inline auto matrix(const Values& x, std::int64_t columns) {
  return
      [&x, columns](std::int64_t i, std::int64_t j) { return x[static_cast<std::size_t>(i * columns + j)]; };
}
inline auto transposed(const Values& x, std::int64_t columns) {
  return
      [&x, columns](std::int64_t i, std::int64_t j) { return x[static_cast<std::size_t>(j * columns + i)]; };
}

/// The E4M3 numbers that are not negative, ascending: 0 to 7 x 2^-9, then 8 of each binade up to 448.
inline Values e4m3_numbers() {
  Values all;
  for (int m = 0; m < 8; ++m) all.push_back(m * std::ldexp(1, -9));
  for (int e = -6; e <= 8; ++e)
    for (int m = 8; m < 16; ++m)
      if (e < 8 || m < 15) all.push_back(m * std::ldexp(1, e - 3));
  return all;
}

/// A matrix rounded as GemmFormat::fp8 says, in blocks of this size.
inline Values in_fp8(const Values& x, std::int64_t columns, std::int64_t block_rows,
                     std::int64_t block_columns) {
  static const Values numbers = e4m3_numbers();
  const auto rows = static_cast<std::int64_t>(x.size()) / columns;
  Values out(x.size());
  for (std::int64_t r = 0; r < rows; r += block_rows)
    for (std::int64_t c = 0; c < columns; c += block_columns) {
      std::vector<std::size_t> block;
      for (std::int64_t i = r; i < std::min(rows, r + block_rows); ++i)
        for (std::int64_t j = c; j < std::min(columns, c + block_columns); ++j)
          block.push_back(static_cast<std::size_t>(i * columns + j));
      double largest = 0, scale = std::ldexp(1, 110);
      for (const std::size_t i : block) largest = std::max(largest, std::abs(x[i]));
      while (largest * scale > 448) scale /= 2;
      for (const std::size_t i : block) {
        const double wanted = std::abs(x[i]) * scale;
        std::size_t best = 0;
        for (std::size_t n = 1; n < numbers.size(); ++n) {
          const double nearer = std::abs(numbers[n] - wanted) - std::abs(numbers[best] - wanted);
          if (nearer < 0 || (nearer == 0 && n % 2 == 0)) best = n;  // the even mantissas are the even places
        }
        out[i] = std::copysign(numbers[best] / scale, x[i]);
      }
    }
  return out;
}
inline constexpr std::int64_t kBlock = kernels::kFp8Block;

/// A weight, with its prepared form for `role` if the backend has one.
inline Weight weight_of(Machine& m, DType dtype, Size size, const Values& values, GemmRole role,
                        GemmFormat format) {
  Weight w{m.tensor(dtype, {size.n, size.c}, values), {}, format};
  kernels::PrepareWeight prepare{
      .plain_NC = w.plain_NC, .role = role, .tokens = 2048, .format = format, .out = {}};
  if (const std::int64_t bytes = m.backend().prepared_bytes(prepare); bytes > 0) {
    prepare.out = w.prepared = m.empty(DType::u8, {bytes});
    m.backend().prepare_weight(m.stream(), prepare);
  }
  return w;
}

/// Fills the scratch with NaNs, so that reads of unwritten scratch become visible.
inline void poison_scratch(Machine& m) { m.spoil_scratch(); }

/// The inputs of all three roles and their products.
struct Case {
  DType dtype;
  Size size;
  GemmFormat format;
  Values x, w, dy, bias, addend, y, dx, dw, dbias;

  Case(DType type, Size s, GemmFormat f = GemmFormat::plain) : dtype(type), size(s), format(f) {
    x = normal_values(s.tokens * s.c, 1, type);
    w = normal_values(s.n * s.c, 2, type);
    dy = normal_values(s.tokens * s.n, 3, type);
    bias = normal_values(s.n, 4, type);
    addend = normal_values(s.tokens * s.n, 5, type);
    const bool fp8 = format == GemmFormat::fp8;
    const auto by_rows = [&](const Values& v, std::int64_t columns) {
      return fp8 ? in_fp8(v, columns, 1, kBlock) : v;
    };
    const auto by_columns = [&](const Values& v, std::int64_t columns) {
      return fp8 ? in_fp8(v, columns, kBlock, 1) : v;
    };
    const Values w8 = fp8 ? in_fp8(w, s.c, kBlock, kBlock) : w;
    const Values x_rows = by_rows(x, s.c), dy_rows = by_rows(dy, s.n), x_columns = by_columns(x, s.c),
                 dy_columns = by_columns(dy, s.n);
    y = product(s.tokens, s.n, s.c, matrix(x_rows, s.c), transposed(w8, s.c));
    dx = product(s.tokens, s.c, s.n, matrix(dy_rows, s.n), matrix(w8, s.c));
    dw = product(s.n, s.c, s.tokens, transposed(dy_columns, s.n), matrix(x_columns, s.c));
    dbias = product(
        1, s.n, s.tokens, [](std::int64_t, std::int64_t) { return 1.0; }, matrix(dy, s.n));
  }
  Values with_bias(Values values) const {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += bias[i % bias.size()];
    return values;
  }
};

inline std::vector<Output> run_fprop(Machine& m, const Case& k) {
  const Size s = k.size;
  const Tensor x = m.tensor(k.dtype, {s.tokens, s.c}, k.x), bias = m.tensor(k.dtype, {s.n}, k.bias);
  const Shape out{s.tokens, s.n};
  const Weight packed = weight_of(m, k.dtype, s, k.w, GemmRole::fprop, k.format),
               plain{packed.plain_NC, {}, k.format};
  const Tensor bias_f32 = m.tensor(DType::f32, {s.n}, k.bias), addend = m.tensor(k.dtype, out, k.addend);
  const Tensor y = m.empty(k.dtype, out), y_packed = m.empty(k.dtype, out), all = m.empty(k.dtype, out);
  const Tensor in_place = m.tensor(k.dtype, out, k.addend), wide = m.empty(DType::f32, out);
  poison_scratch(m);
  kernels::Backend& b = m.backend();
  b.linear_fprop(m.stream(), {.x_TC = x, .weight = plain, .bias_N = {}, .addend_TN = {}, .y_TN = y});
  b.linear_fprop(m.stream(), {.x_TC = x, .weight = packed, .bias_N = {}, .addend_TN = {}, .y_TN = y_packed});
  b.linear_fprop(m.stream(), {.x_TC = x, .weight = packed, .bias_N = bias, .addend_TN = addend, .y_TN = all});
  b.linear_fprop(m.stream(),
                 {.x_TC = x, .weight = plain, .bias_N = bias_f32, .addend_TN = in_place, .y_TN = in_place});
  b.linear_fprop(m.stream(), {.x_TC = x, .weight = plain, .bias_N = {}, .addend_TN = {}, .y_TN = wide});
  const Values everything = sum(k.with_bias(k.y), k.addend);
  return {{"y", y, k.y, s.c},
          {"y of a packed weight", y_packed, k.y, s.c},
          {"y with bias and addend", all, everything, s.c},
          {"y added in place", in_place, everything, s.c},
          {"y in fp32", wide, k.y, s.c}};
}

inline std::vector<Output> run_dgrad(Machine& m, const Case& k) {
  const Size s = k.size;
  const Tensor dy = m.tensor(k.dtype, {s.tokens, s.n}, k.dy);
  const Weight packed = weight_of(m, k.dtype, s, k.w, GemmRole::dgrad, k.format),
               plain{packed.plain_NC, {}, k.format};
  const Tensor dx = m.empty(k.dtype, {s.tokens, s.c}), dx_packed = m.empty(k.dtype, {s.tokens, s.c});
  const Tensor added = m.tensor(k.dtype, {s.tokens, s.c}, k.x);
  poison_scratch(m);
  kernels::Backend& b = m.backend();
  b.linear_dgrad(m.stream(), {.dy_TN = dy, .weight = plain, .dx_TC = dx});
  b.linear_dgrad(m.stream(), {.dy_TN = dy, .weight = packed, .dx_TC = dx_packed});
  b.linear_dgrad(m.stream(), {.dy_TN = dy, .weight = packed, .dx_TC = added, .mode = WriteMode::accumulate});
  return {{"dx", dx, k.dx, s.n},
          {"dx of a packed weight", dx_packed, k.dx, s.n},
          {"dx accumulated", added, sum(k.dx, k.x), s.n}};
}

inline std::vector<Output> run_wgrad(Machine& m, const Case& k, DType gradient) {
  const Size s = k.size;
  const Tensor x = m.tensor(k.dtype, {s.tokens, s.c}, k.x), dy = m.tensor(k.dtype, {s.tokens, s.n}, k.dy);
  const Values before = rounded(k.w, gradient), bias_before = rounded(k.bias, gradient);
  const Tensor dw = m.empty(gradient, {s.n, s.c}), dbias = m.empty(gradient, {s.n});
  const Tensor more = m.tensor(gradient, {s.n, s.c}, before),
               bias_more = m.tensor(gradient, {s.n}, bias_before);
  poison_scratch(m);
  kernels::Backend& b = m.backend();
  b.linear_wgrad(m.stream(), {.dy_TN = dy,
                              .x_TC = x,
                              .dweight_NC = dw,
                              .dbias_N = dbias,
                              .mode = WriteMode::assign,
                              .format = k.format});
  b.linear_wgrad(m.stream(),
                 {.dy_TN = dy, .x_TC = x, .dweight_NC = more, .dbias_N = bias_more, .format = k.format});
  return {{"dw", dw, k.dw, s.tokens},
          {"dbias", dbias, k.dbias, s.tokens},
          {"dw accumulated", more, sum(k.dw, before), s.tokens},
          {"dbias accumulated", bias_more, sum(k.dbias, bias_before), s.tokens}};
}

// silu(g) u of rows [g | u], and its gradient.
inline Values glu(const Values& gate_up, std::int64_t F) {
  const std::size_t f = static_cast<std::size_t>(F);
  Values act(gate_up.size() / 2);
  for (std::size_t i = 0; i < act.size(); ++i) {
    const double g = gate_up[i / f * 2 * f + i % f], u = gate_up[i / f * 2 * f + f + i % f];
    act[i] = g / (1 + std::exp(-g)) * u;
  }
  return act;
}
inline Values glu_gradient(const Values& gate_up, const Values& dact, std::int64_t F) {
  const std::size_t f = static_cast<std::size_t>(F);
  Values gradient(gate_up.size());
  for (std::size_t i = 0; i < dact.size(); ++i) {
    const std::size_t at = i / f * 2 * f + i % f;
    const double g = gate_up[at], u = gate_up[at + f], sigmoid = 1 / (1 + std::exp(-g));
    gradient[at] = dact[i] * u * sigmoid * (1 + g * (1 - sigmoid));
    gradient[at + f] = dact[i] * g * sigmoid;
  }
  return gradient;
}

/// The fused operators. A row kernel reads values that were rounded when the GEMM stored them, so its
/// reference is computed from the stored values, which are checked separately. (k.size.n is 2F in the first
/// and F is k.size.c in the second.)
inline std::vector<Output> run_swiglu(Machine& m, const Case& k, bool prepared) {
  const Size s = k.size;
  const Tensor x = m.tensor(k.dtype, {s.tokens, s.c}, k.x);
  Weight w = weight_of(m, k.dtype, s, k.w, GemmRole::fprop, k.format);
  if (!prepared) w.prepared = {};
  const Tensor gate_up = m.empty(k.dtype, {s.tokens, s.n}), act = m.empty(k.dtype, {s.tokens, s.n / 2});
  poison_scratch(m);
  m.backend().linear_swiglu(m.stream(), {.x_TC = x, .weight = w, .gate_up_T2F = gate_up, .act_TF = act});
  return {{"gate_up", gate_up, k.y, s.c}, {"act", act, glu(Machine::read(gate_up), s.n / 2), 1}};
}
inline std::vector<Output> run_dgrad_swiglu(Machine& m, const Case& k, bool prepared) {
  const Size s = k.size;
  const Values gate_up = normal_values(s.tokens * 2 * s.c, 6, k.dtype);
  const Tensor dy = m.tensor(k.dtype, {s.tokens, s.n}, k.dy),
               saved = m.tensor(k.dtype, {s.tokens, 2 * s.c}, gate_up);
  Weight w = weight_of(m, k.dtype, s, k.w, GemmRole::dgrad, k.format);
  if (!prepared) w.prepared = {};
  const Tensor dact = m.empty(k.dtype, {s.tokens, s.c}), act = m.empty(k.dtype, {s.tokens, s.c});
  const Tensor dgate_up = m.empty(k.dtype, {s.tokens, 2 * s.c});
  const Tensor in_place = m.tensor(k.dtype, {s.tokens, 2 * s.c}, gate_up);
  poison_scratch(m);
  kernels::Backend& b = m.backend();
  b.linear_dgrad(m.stream(), {.dy_TN = dy, .weight = w, .dx_TC = dact});
  b.linear_dgrad_swiglu(
      m.stream(), {.dy_TD = dy, .weight = w, .gate_up_T2F = saved, .dgate_up_T2F = dgate_up, .act_TF = act});
  b.linear_dgrad_swiglu(
      m.stream(),
      {.dy_TD = dy, .weight = w, .gate_up_T2F = in_place, .dgate_up_T2F = in_place, .act_TF = {}});
  const Values gradient = glu_gradient(gate_up, Machine::read(dact), s.c);
  return {{"dact", dact, k.dx, s.n},
          {"dgate_up", dgate_up, gradient, 1},
          {"dgate_up in place", in_place, gradient, 1},
          {"act", act, glu(gate_up, s.c), 1}};
}

}  // namespace trainerd::test::gemm_cases
