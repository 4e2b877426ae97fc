#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::HeadGeometry;
using kernels::WriteMode;

constexpr float kRopeEps = 1e-2f;

struct RopeCase {
  HeadGeometry heads;
  DType dtype;
  std::int64_t tokens;
  bool norm, rope;
  kernels::QkNormSpan span = kernels::QkNormSpan::head;
  double offset = 0;      ///< added to the norms' weights
  std::int64_t part = 0;  ///< rotated elements of a head; 0: all
  std::int64_t rotated() const { return part > 0 ? part : heads.head_size; }
  std::int64_t first = 0;  ///< number of the first token, which decides its position

  std::int64_t q_weights() const { return norm_elements(span, heads.heads, heads.head_size); }
  std::int64_t k_weights() const { return norm_elements(span, heads.kv_heads, heads.head_size); }
};

std::vector<RopeCase> rope_cases() {
  std::vector<RopeCase> all;
  for (const DType dtype : kActivationDtypes)
    for (const bool norm : {false, true})
      for (const bool rope : {false, true}) {
        all.push_back({{2, 1, 6}, dtype, 5, norm, rope});
        all.push_back({{1, 1, 2}, dtype, 37, norm, rope});
        all.push_back({{4, 2, 32}, dtype, 2, norm, rope});
        if (rope) {
          all.push_back({{2, 1, 6}, dtype, 3, norm, rope, kernels::QkNormSpan::head, 0, 2});
          all.push_back({{2, 1, 32}, dtype, 2, norm, rope, kernels::QkNormSpan::head, 0, 16});
        }
        if (!norm) continue;
        if (rope) all.push_back({{2, 1, 12}, dtype, 3, norm, rope, kernels::QkNormSpan::all, 1.0, 8});
        // More tokens than one partial sum covers; more heads than groups in a block.
        all.push_back({{2, 1, 6}, dtype, 37, norm, rope, kernels::QkNormSpan::all});
        all.push_back({{36, 2, 32}, dtype, 3, norm, rope, kernels::QkNormSpan::all, 1.0});
        all.push_back({{4, 2, 32}, dtype, 5, norm, rope, kernels::QkNormSpan::head, 1.0});
      }
  return all;
}

std::vector<std::int32_t> positions_of(const RopeCase& c) {
  std::vector<std::int32_t> positions;
  for (std::int64_t t = c.first; t < c.first + c.tokens; ++t)
    positions.push_back(static_cast<std::int32_t>(t * 7 % 11));
  return positions;
}

/// The rotation as a product of complex numbers, unlike the operator's method.
Values reference(const RopeCase& c, const Values& qkv, const Values& q_weight, const Values& k_weight,
                 const Values& table) {
  const auto e = static_cast<std::size_t>(c.heads.head_size),
             columns = static_cast<std::size_t>(c.heads.columns());
  const auto rotated = static_cast<std::size_t>(c.heads.heads + c.heads.kv_heads);
  const std::vector<std::int32_t> positions = positions_of(c);
  Values out = qkv;
  for (std::size_t t = 0; t < static_cast<std::size_t>(c.tokens); ++t)
    for (std::size_t h = 0; h < rotated; ++h) {
      double* x = out.data() + t * columns + h * e;
      if (c.norm) {
        const auto queries = static_cast<std::size_t>(c.heads.heads);
        const Values& weight = h < queries ? q_weight : k_weight;
        const bool all = c.span == kernels::QkNormSpan::all;
        const std::size_t begin = all ? (h < queries ? 0 : queries) : h,
                          end = all ? (h < queries ? queries : rotated) : h + 1;
        double squares = 0;
        for (std::size_t i = begin * e; i < end * e; ++i)
          squares += qkv[t * columns + i] * qkv[t * columns + i];
        for (std::size_t i = 0; i < e; ++i)
          x[i] *= (c.offset + weight[(h - begin) * e + i]) /
                  std::sqrt(squares / static_cast<double>((end - begin) * e) + kRopeEps);
      }
      if (!c.rope) continue;
      const auto r = static_cast<std::size_t>(c.rotated());
      const double* cs = table.data() + static_cast<std::size_t>(positions[t]) * r;
      for (std::size_t i = 0; i < r / 2; ++i) {
        const double low = x[i], high = x[i + r / 2];
        x[i] = low * cs[i] - high * cs[i + r / 2];
        x[i + r / 2] = low * cs[i + r / 2] + high * cs[i];
      }
    }
  return out;
}

/// Gradient of dot(output, dout) in qkv, token by token: no token's output depends on another token.
Values qkv_gradient(const RopeCase& c, const Values& qkv, const Values& dout, const Values& q_weight,
                    const Values& k_weight, const Values& table) {
  const auto row_of = [&](const Values& x, std::int64_t t) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(t * c.heads.columns());
    return Values(begin, begin + static_cast<std::ptrdiff_t>(c.heads.columns()));
  };
  Values gradient;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    RopeCase token = c;
    token.tokens = 1;
    token.first = t;
    const Values dout_row = row_of(dout, t);
    const Values row = numeric_gradient(
        [&](const Values& x) { return dot(reference(token, x, q_weight, k_weight, table), dout_row); },
        row_of(qkv, t));
    gradient.insert(gradient.end(), row.begin(), row.end());
  }
  return gradient;
}

std::vector<double> rope_frequencies(std::int64_t e, double theta) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < e / 2; ++i)
    frequencies.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(e)));
  return frequencies;
}

Values rope_values(std::int64_t positions, std::int64_t e, double theta, double factor = 1) {
  Values table;
  for (std::int64_t s = 0; s < positions; ++s)
    for (const bool sine : {false, true})
      for (std::int64_t i = 0; i < e / 2; ++i) {
        const double angle =
            static_cast<double>(s) * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(e));
        table.push_back(factor * (sine ? std::sin(angle) : std::cos(angle)));
      }
  return table;
}

}  // namespace

TEST_CASE("the rope table holds cosines and sines accurate to one fp32 rounding", "[rope]") {
  check_operator([](Machine& m) {
    std::vector<Output> outputs;
    const std::vector<double> frequencies = rope_frequencies(8, 500.0);
    for (const double factor : {1.0, 0.75}) {
      const Tensor table = m.empty(DType::f32, {3000, 8});
      m.backend().rope_table(m.stream(), {.frequencies = frequencies, .factor = factor, .table_SR = table});
      const Values expected = rope_values(3000, 8, 500.0, factor);
      const Values actual = Machine::read(table);
      double worst = 0;
      for (std::size_t i = 0; i < actual.size(); ++i)
        worst = std::max(worst, std::abs(actual[i] - expected[i]));
      CHECK(worst <= 0x1p-24);
      outputs.push_back({factor == 1.0 ? "table" : "scaled table", table, expected});
    }
    return outputs;
  });
}

TEST_CASE("qk_norm_rope forward matches its float64 definition", "[rope]") {
  for (const RopeCase& c : rope_cases()) {
    const std::int64_t e = c.heads.head_size;
    const Shape shape{c.tokens, c.heads.columns()};
    const Values qkv = normal_values(shape.numel(), 1, c.dtype);
    const Values q_weight = normal_values(c.q_weights(), 2, c.dtype, 0.3, 1.0 - c.offset),
                 k_weight = normal_values(c.k_weights(), 3, c.dtype, 0.3, 1.0 - c.offset);
    const Values table = rounded(rope_values(11, c.rotated(), 100.0), DType::f32);
    const Values expected = reference(c, qkv, q_weight, k_weight, table);
    check_operator([&](Machine& m) {
      kernels::QkNormRopeForward args{
          .heads = c.heads,
          .qkv_in = m.tensor(c.dtype, shape, qkv),
          .qkv_out = m.empty(c.dtype, shape),
          .positions_T = m.ids(positions_of(c)),
          .rope_table_SR = c.rope ? m.tensor(DType::f32, {11, c.rotated()}, table) : Tensor{},
          .span = c.span,
          .q_weight_E = c.norm ? m.tensor(c.dtype, {c.q_weights()}, q_weight) : Tensor{},
          .k_weight_E = c.norm ? m.tensor(c.dtype, {c.k_weights()}, k_weight) : Tensor{},
          .weight_offset = static_cast<float>(c.offset),
          .eps = kRopeEps};
      m.backend().qk_norm_rope_forward(m.stream(), args);
      std::vector<Output> outputs{{"qkv", args.qkv_out, expected, e}};
      if (!c.norm) {
        args.qkv_out = args.qkv_in;
        m.backend().qk_norm_rope_forward(m.stream(), args);
        outputs.push_back({"qkv in place", args.qkv_out, expected, e});
      }
      return outputs;
    });
  }
}

TEST_CASE("qk_norm_rope backward matches finite differences in its input and weights", "[rope]") {
  std::size_t turn = 0;
  for (const RopeCase& c : rope_cases()) {
    if (!in_slice(turn++, 6)) continue;
    const std::int64_t e = c.heads.head_size;
    const Shape shape{c.tokens, c.heads.columns()};
    const Values qkv = normal_values(shape.numel(), 4, c.dtype),
                 dout = normal_values(shape.numel(), 5, c.dtype);
    const Values q_weight = normal_values(c.q_weights(), 6, c.dtype, 0.3, 1.0 - c.offset),
                 k_weight = normal_values(c.k_weights(), 7, c.dtype, 0.3, 1.0 - c.offset);
    const Values q_before = normal_values(c.q_weights(), 8, DType::f32),
                 k_before = normal_values(c.k_weights(), 9, DType::f32);
    const Values table = rounded(rope_values(11, c.rotated(), 100.0), DType::f32);
    const auto loss = [&](const Values& x, const Values& q, const Values& k) {
      return dot(reference(c, x, q, k, table), dout);
    };
    const Values dqkv = qkv_gradient(c, qkv, dout, q_weight, k_weight, table);
    const Values dq = numeric_gradient([&](const Values& v) { return loss(qkv, v, k_weight); }, q_weight);
    const Values dk = numeric_gradient([&](const Values& v) { return loss(qkv, q_weight, v); }, k_weight);
    check_operator([&](Machine& m) {
      kernels::QkNormRopeBackward args{
          .heads = c.heads,
          .qkv_in = c.norm ? m.tensor(c.dtype, shape, qkv) : Tensor{},
          .dqkv = m.tensor(c.dtype, shape, dout),
          .positions_T = m.ids(positions_of(c)),
          .rope_table_SR = c.rope ? m.tensor(DType::f32, {11, c.rotated()}, table) : Tensor{},
          .span = c.span,
          .q_weight_E = {},
          .k_weight_E = {},
          .weight_offset = static_cast<float>(c.offset),
          .eps = kRopeEps,
          .dq_weight_E = {},
          .dk_weight_E = {},
          .mode = WriteMode::accumulate};
      if (c.norm) {
        args.q_weight_E = m.tensor(c.dtype, {c.q_weights()}, q_weight);
        args.k_weight_E = m.tensor(c.dtype, {c.k_weights()}, k_weight);
        args.dq_weight_E = m.tensor(DType::f32, {c.q_weights()}, q_before);
        args.dk_weight_E = m.tensor(DType::f32, {c.k_weights()}, k_before);
      }
      m.backend().qk_norm_rope_backward(m.stream(), args);
      CHECK(m.scratch().high_water() == kernels::align_up(scratch_bytes(args, m.backend().target())));
      std::vector<Output> outputs{{"dqkv", args.dqkv, dqkv, e}};
      if (c.norm) {
        outputs.push_back(
            {"dq_weight added to", args.dq_weight_E, sum(q_before, dq), c.tokens * c.heads.heads});
        outputs.push_back(
            {"dk_weight added to", args.dk_weight_E, sum(k_before, dk), c.tokens * c.heads.kv_heads});
        args.dqkv = m.tensor(c.dtype, shape, dout);
        args.dq_weight_E = m.empty(c.dtype, {c.q_weights()});
        args.dk_weight_E = m.empty(c.dtype, {c.k_weights()});
        args.mode = WriteMode::assign;
        m.backend().qk_norm_rope_backward(m.stream(), args);
        outputs.push_back({"dq_weight assigned", args.dq_weight_E, dq, c.tokens * c.heads.heads});
        outputs.push_back({"dk_weight assigned", args.dk_weight_E, dk, c.tokens * c.heads.kv_heads});
      }
      return outputs;
    });
  }
}

TEST_CASE("a norm over all heads on two ranks equals that of one rank", "[rope]") {
  for (const DType dtype : kActivationDtypes)
    for (const bool rope : {true, false})
      for (const std::int64_t e : {6, 32}) {
        const RopeCase c{{4, 2, e}, dtype, 19, true, rope, kernels::QkNormSpan::all, 1.0};
        const Shape shape{c.tokens, c.heads.columns()}, part_shape{c.tokens, c.heads.columns() / 2};
        const Values qkv = normal_values(shape.numel(), 1, dtype),
                     dout = normal_values(shape.numel(), 2, dtype);
        const Values q_weight = normal_values(c.q_weights(), 3, dtype, 0.3),
                     k_weight = normal_values(c.k_weights(), 4, dtype, 0.3);
        const Values table = rounded(rope_values(11, e, 100.0), DType::f32);
        const auto loss = [&](const Values& x, const Values& q, const Values& k) {
          return dot(reference(c, x, q, k, table), dout);
        };
        const Values expected = reference(c, qkv, q_weight, k_weight, table);
        const Values dqkv = qkv_gradient(c, qkv, dout, q_weight, k_weight, table);
        const Values dq = numeric_gradient([&](const Values& v) { return loss(qkv, v, k_weight); }, q_weight);
        const Values dk = numeric_gradient([&](const Values& v) { return loss(qkv, q_weight, v); }, k_weight);
        // Per token the rank's queries, keys and values; of a weight the rank's half.
        const auto columns_of = [&](std::size_t rank, const Values& whole) {
          Values part;
          for (std::size_t t = 0; t < static_cast<std::size_t>(c.tokens); ++t)
            for (const auto& [first, count] : {std::pair{0, 2}, {4, 1}, {6, 1}}) {
              const std::size_t size = static_cast<std::size_t>(count * e),
                                begin = t * static_cast<std::size_t>(c.heads.columns()) +
                                        static_cast<std::size_t>(first * e) + rank * size;
              part.insert(part.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin),
                          whole.begin() + static_cast<std::ptrdiff_t>(begin + size));
            }
          return part;
        };
        const auto half_of = [](std::size_t rank, const Values& whole) {
          const auto half = static_cast<std::ptrdiff_t>(whole.size() / 2),
                     begin = half * static_cast<std::ptrdiff_t>(rank);
          return Values(whole.begin() + begin, whole.begin() + begin + half);
        };
        check_operator([&](Machine& m) {
          const HeadGeometry heads{2, 1, e};
          const Tensor positions = m.ids(positions_of(c)),
                       angles = rope ? m.tensor(DType::f32, {11, e}, table) : Tensor{};
          std::vector<kernels::QkNormSums> squares, products;
          for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
            squares.push_back({.heads = heads,
                               .qkv_in = m.tensor(dtype, part_shape, columns_of(rank, qkv)),
                               .positions_T = positions,
                               .rope_table_SR = angles,
                               .q_weight_E = m.tensor(dtype, {2 * e}, half_of(rank, q_weight)),
                               .k_weight_E = m.tensor(dtype, {e}, half_of(rank, k_weight)),
                               .weight_offset = 1.0f,
                               .sums_T2 = m.empty(DType::f32, {c.tokens, 2})});
            products.push_back(squares.back());
            products.back().dqkv = m.tensor(dtype, part_shape, columns_of(rank, dout));
            products.back().sums_T2 = m.empty(DType::f32, {c.tokens, 2});
            m.backend().qk_norm_sums(m.stream(), squares.back());
            m.backend().qk_norm_sums(m.stream(), products.back());
          }
          for (auto* sums : {&squares, &products})
            m.backend().add(m.stream(), {sums->at(0).sums_T2, sums->at(1).sums_T2, sums->at(0).sums_T2});
          std::vector<Output> outputs;
          for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
            const kernels::QkNormSums& of = products.at(rank);
            const kernels::QkNormRopeForward forward{.heads = heads,
                                                     .qkv_in = of.qkv_in,
                                                     .qkv_out = m.empty(dtype, part_shape),
                                                     .positions_T = positions,
                                                     .rope_table_SR = angles,
                                                     .span = c.span,
                                                     .q_weight_E = of.q_weight_E,
                                                     .k_weight_E = of.k_weight_E,
                                                     .weight_offset = 1.0f,
                                                     .eps = kRopeEps,
                                                     .squares_T2 = squares.at(0).sums_T2,
                                                     .ranks = 2};
            m.backend().qk_norm_rope_forward(m.stream(), forward);
            const kernels::QkNormRopeBackward backward{.heads = heads,
                                                       .qkv_in = of.qkv_in,
                                                       .dqkv = of.dqkv,
                                                       .positions_T = positions,
                                                       .rope_table_SR = angles,
                                                       .span = c.span,
                                                       .q_weight_E = of.q_weight_E,
                                                       .k_weight_E = of.k_weight_E,
                                                       .weight_offset = 1.0f,
                                                       .eps = kRopeEps,
                                                       .dq_weight_E = m.empty(DType::f32, {2 * e}),
                                                       .dk_weight_E = m.empty(DType::f32, {e}),
                                                       .mode = WriteMode::assign,
                                                       .squares_T2 = squares.at(0).sums_T2,
                                                       .products_T2 = products.at(0).sums_T2,
                                                       .ranks = 2};
            m.backend().qk_norm_rope_backward(m.stream(), backward);
            outputs.push_back({"qkv", forward.qkv_out, columns_of(rank, expected), e});
            outputs.push_back({"dqkv", backward.dqkv, columns_of(rank, dqkv), e});
            outputs.push_back({"dq_weight", backward.dq_weight_E, half_of(rank, dq), c.tokens * 4});
            outputs.push_back({"dk_weight", backward.dk_weight_E, half_of(rank, dk), c.tokens * 2});
          }
          return outputs;
        });
      }
}

}  // namespace trainerd::test
