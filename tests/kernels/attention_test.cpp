#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::HeadGeometry;
using kernels::MaskKind;

struct Problem {
  HeadGeometry heads;
  std::vector<std::int64_t> lengths;
  MaskKind mask = MaskKind::causal;

  std::int64_t tokens() const {
    std::int64_t total = 0;
    for (const std::int64_t n : lengths) total += n;
    return total;
  }
  std::int64_t longest() const { return *std::max_element(lengths.begin(), lengths.end()); }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(heads.head_size)); }
  std::vector<std::int32_t> cu_seqlens() const {
    std::vector<std::int32_t> bounds{0};
    for (const std::int64_t n : lengths) bounds.push_back(bounds.back() + static_cast<std::int32_t>(n));
    return bounds;
  }
};

double& at(Values& x, std::int64_t i) { return x[static_cast<std::size_t>(i)]; }
double at(const Values& x, std::int64_t i) { return x[static_cast<std::size_t>(i)]; }

/// A result and how far each element of an implementation in `dtype` may lie from it.
struct Bounded {
  Values value, bound;
  explicit Bounded(std::int64_t n)
      : value(static_cast<std::size_t>(n), 0.0), bound(static_cast<std::size_t>(n), 0.0) {}
};

/// Errors come from: weights (probabilities, gradients of scores) rounded once to the dtype before they
/// multiply; fp32 arithmetic on scores, sums and exponentials, whose relative size is u(fp32) (16 + 4
/// sqrt(length)) of the sum of the terms' magnitudes (as in tolerance.h); the result's own rounding. Bounds
/// are sums over each element's own terms.
struct Rounding {
  double dtype, fp32;
  Rounding(DType d, std::int64_t length)
      : dtype(unit_roundoff(d)),
        fp32(unit_roundoff(DType::f32) * (16.0 + 4.0 * std::sqrt(static_cast<double>(length)))) {}
};

struct Forward {
  Bounded out, lse;
};

/// Calls `body(query token, key token, head, kv head)` for every pair that the mask leaves.
template <class Body>
void for_each_pair(const Problem& p, const Body& body) {
  const std::vector<std::int32_t> bounds = p.cu_seqlens();
  const std::int64_t group = p.heads.heads / p.heads.kv_heads;
  for (std::size_t b = 0; b + 1 < bounds.size(); ++b)
    for (std::int64_t head = 0; head < p.heads.heads; ++head)
      for (std::int64_t q = bounds[b]; q < bounds[b + 1]; ++q)
        for (std::int64_t k = bounds[b]; k < (p.mask == MaskKind::causal ? q + 1 : bounds[b + 1]); ++k)
          body(q, k, head, head / group);
}

/// Columns of a head's query, key and value in a row of qkv.
std::int64_t q_column(const Problem& p, std::int64_t head) { return head * p.heads.head_size; }
std::int64_t k_column(const Problem& p, std::int64_t kv) { return (p.heads.heads + kv) * p.heads.head_size; }
std::int64_t v_column(const Problem& p, std::int64_t kv) {
  return (p.heads.heads + p.heads.kv_heads + kv) * p.heads.head_size;
}

/// Scaled score and the sum of its terms' magnitudes.
std::pair<double, double> score(const Problem& p, const Values& qkv, std::int64_t q, std::int64_t k,
                                std::int64_t head, std::int64_t kv) {
  const std::int64_t W = p.heads.columns();
  double sum = 0, size = 0;
  for (std::int64_t e = 0; e < p.heads.head_size; ++e) {
    const double term =
        at(qkv, q * W + q_column(p, head) + e) * at(qkv, k * W + k_column(p, kv) + e) * p.scale();
    sum += term;
    size += std::abs(term);
  }
  return {sum, size};
}

Forward forward(const Problem& p, const Values& qkv, DType dtype) {
  const std::int64_t T = p.tokens(), E = p.heads.head_size, H = p.heads.heads, W = p.heads.columns();
  const Rounding u(dtype, std::max(E, p.longest()));
  Forward f{Bounded(T * H * E), Bounded(H * T)};
  Values sum(static_cast<std::size_t>(H * T), 0.0), largest(static_cast<std::size_t>(H * T), 0.0);
  for_each_pair(p, [&](std::int64_t q, std::int64_t k, std::int64_t head, std::int64_t kv) {
    const auto [s, size] = score(p, qkv, q, k, head, kv);
    at(sum, head * T + q) += std::exp(s);
    at(largest, head * T + q) = std::max(at(largest, head * T + q), size);
  });
  for (std::int64_t i = 0; i < H * T; ++i) {
    at(f.lse.value, i) = std::log(at(sum, i));
    at(f.lse.bound, i) = u.fp32 * (1 + at(largest, i) + std::abs(at(f.lse.value, i)));
  }
  for_each_pair(p, [&](std::int64_t q, std::int64_t k, std::int64_t head, std::int64_t kv) {
    const double prob = std::exp(score(p, qkv, q, k, head, kv).first - at(f.lse.value, head * T + q));
    for (std::int64_t e = 0; e < E; ++e) {
      const double term = prob * at(qkv, k * W + v_column(p, kv) + e);
      at(f.out.value, (q * H + head) * E + e) += term;
      at(f.out.bound, (q * H + head) * E + e) +=
          std::abs(term) * (u.dtype + u.fp32 * (2 + 2 * at(largest, head * T + q)));
    }
  });
  for (std::int64_t i = 0; i < T * H * E; ++i)
    at(f.out.bound, i) += 1.01 * u.dtype * std::abs(at(f.out.value, i));
  return f;
}

Bounded backward(const Problem& p, const Values& qkv, const Values& out, const Values& lse,
                 const Values& dout, DType dtype) {
  const std::int64_t T = p.tokens(), E = p.heads.head_size, H = p.heads.heads, W = p.heads.columns();
  const Rounding u(dtype, std::max(E, p.longest() * H / p.heads.kv_heads));
  Bounded dqkv(T * W);
  const auto add = [&](std::int64_t i, double weight, double weight_error, double factor) {
    at(dqkv.value, i) += weight * factor;
    at(dqkv.bound, i) += std::abs(factor) * (weight_error + std::abs(weight) * (u.dtype + u.fp32));
  };
  for_each_pair(p, [&](std::int64_t q, std::int64_t k, std::int64_t head, std::int64_t kv) {
    const auto [s, size] = score(p, qkv, q, k, head, kv);
    const double log_sum = at(lse, head * T + q), prob = std::exp(s - log_sum);
    const double prob_error = prob * u.fp32 * (1 + size + std::abs(log_sum));
    double dprob = 0, dprob_size = 0;
    for (std::int64_t e = 0; e < E; ++e) {
      const double d = at(dout, (q * H + head) * E + e), v = at(qkv, k * W + v_column(p, kv) + e);
      const double o = at(out, (q * H + head) * E + e);
      dprob += d * (v - o);
      dprob_size += std::abs(d * v) + std::abs(d * o);
    }
    const double dscore = prob * dprob * p.scale();
    const double dscore_error = (prob * dprob_size * u.fp32 + prob_error * std::abs(dprob)) * p.scale();
    for (std::int64_t e = 0; e < E; ++e) {
      const std::int64_t qi = q * W + q_column(p, head) + e, ki = k * W + k_column(p, kv) + e;
      add(qi, dscore, dscore_error, at(qkv, ki));
      add(ki, dscore, dscore_error, at(qkv, qi));
      add(k * W + v_column(p, kv) + e, prob, prob_error, at(dout, (q * H + head) * E + e));
    }
  });
  for (std::int64_t i = 0; i < T * W; ++i) at(dqkv.bound, i) += 1.01 * u.dtype * std::abs(at(dqkv.value, i));
  return dqkv;
}

void check_bounded(const char* name, const Tensor& actual, const Bounded& reference) {
  const Values values = Machine::read(actual);
  REQUIRE(values.size() == reference.value.size());
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = std::abs(values[i] - reference.value[i]) / reference.bound[i];
    worst =
        error >= 0 ? std::max(worst, error) : std::numeric_limits<double>::infinity();  // a NaN is infinite
  }
  INFO(name << ": the worst error is " << worst << " of its bound");
  CHECK(worst <= 1.0);
}

void check_problem(const Problem& p, DType dtype) {
  const std::int64_t T = p.tokens(), E = p.heads.head_size, H = p.heads.heads, W = p.heads.columns();
  const Values qkv = normal_values(T * W, 1, dtype), dout = normal_values(T * H * E, 2, dtype);
  const Forward f = forward(p, qkv, dtype);
  // The backward pass is given what the forward stores: its output in the dtype, its log-sum-exp in fp32.
  const Values out = rounded(f.out.value, dtype), lse = rounded(f.lse.value, DType::f32);
  const Bounded dqkv = backward(p, qkv, out, lse, dout, dtype);
  for (const kernels::Isa isa : instruction_sets()) {
    std::vector<Values> first;
    for (const int threads : {1, 2, 3}) {
      INFO(kernels::name_of(dtype) << " on " << kernels::to_string(isa) << " with " << threads
                                   << " threads, head " << E << ", " << p.lengths.size() << " sequences");
      Machine m(isa, threads);
      std::memset(m.scratch().base(), 0xff, static_cast<std::size_t>(m.scratch().capacity()));
      const Tensor x = m.tensor(dtype, {T, W}, qkv), bounds = m.ids(p.cu_seqlens());
      const Tensor y = m.empty(dtype, {T, H * E}), sums = m.empty(DType::f32, {H, T}),
                   dx = m.empty(dtype, {T, W});
      const auto sequences = static_cast<std::int64_t>(p.lengths.size());
      const std::optional<MatrixWork> before = matrix_work();
      m.backend().attention_forward(m.stream(), {.heads = p.heads,
                                                 .mask = p.mask,
                                                 .scale = static_cast<float>(p.scale()),
                                                 .sequences = sequences,
                                                 .max_seqlen = p.longest(),
                                                 .cu_seqlens = bounds,
                                                 .qkv = x,
                                                 .out_THE = y,
                                                 .lse_HT = sums});
      check_bounded("out", y, f.out);
      check_bounded("lse", sums, f.lse);
      const std::optional<MatrixWork> between = matrix_work();
      m.backend().attention_backward(m.stream(), {.heads = p.heads,
                                                  .mask = p.mask,
                                                  .scale = static_cast<float>(p.scale()),
                                                  .sequences = sequences,
                                                  .max_seqlen = p.longest(),
                                                  .cu_seqlens = bounds,
                                                  .qkv = x,
                                                  .out_THE = m.tensor(dtype, {T, H * E}, out),
                                                  .lse_HT = m.tensor(DType::f32, {H, T}, lse),
                                                  .dout_THE = m.tensor(dtype, {T, H * E}, dout),
                                                  .dqkv = dx});
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
  for (const MaskKind mask : {MaskKind::causal, MaskKind::none}) {
    const Problem p{{.heads = 4, .kv_heads = 2, .head_size = 3}, {4, 1, 3}, mask};
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
  for (const DType dtype : kActivationDtypes)
    for (const MaskKind mask : {MaskKind::causal, MaskKind::none}) {
      check_problem({{.heads = 4, .kv_heads = 2, .head_size = 8}, {1, 17, 64, 7}, mask}, dtype);
      check_problem({{.heads = 2, .kv_heads = 2, .head_size = 40}, {97, 30}, mask}, dtype);
      check_problem({{.heads = 3, .kv_heads = 1, .head_size = 64}, {100, 5, 129}, mask}, dtype);
      check_problem({{.heads = 2, .kv_heads = 1, .head_size = 128}, {70}, mask}, dtype);
      check_problem({{.heads = 4, .kv_heads = 2, .head_size = 128}, {150, 131}, mask}, dtype);
      check_problem({{.heads = 2, .kv_heads = 1, .head_size = 88}, {140}, mask}, dtype);
      check_problem({{.heads = 1, .kv_heads = 1, .head_size = 136}, {37}, mask}, dtype);
      check_problem({{.heads = 1, .kv_heads = 1, .head_size = 7}, {3, 0, 20}, mask}, dtype);
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
    m.backend().attention_forward(m.stream(), {.heads = p.heads,
                                               .mask = p.mask,
                                               .scale = 1.0f,
                                               .sequences = 1,
                                               .max_seqlen = 300,
                                               .cu_seqlens = m.ids({0, 300}),
                                               .qkv = x,
                                               .out_THE = y,
                                               .lse_HT = sums});
    CHECK(scaled_error(Machine::read(y), Values(300 * 8, 30.0)) <= tolerance(DType::f32, 300));
    CHECK(Machine::read(sums)[299] == Approx(7200 + std::log(300.0)).epsilon(1e-6));
  }
}

}  // namespace trainerd::test
