#pragma once

// Attention in float64, written from its definition, with an error bound for each element of an
// implementation.

#include "tests/kernels/machine.h"

namespace trainerd::test {

using kernels::HeadGeometry;
using kernels::MaskKind;

/// Whole sequences, packed; a row of qkv is laid out by HeadGeometry.
struct Problem {
  HeadGeometry heads;
  std::vector<std::int64_t> lengths;
  MaskKind mask = MaskKind::causal;
  std::int64_t window = 0;
  double softcap = 0;

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

inline double& at(Values& x, std::int64_t i) { return x[static_cast<std::size_t>(i)]; }
inline double at(const Values& x, std::int64_t i) { return x[static_cast<std::size_t>(i)]; }

/// A result, and per element the largest error of an implementation in `dtype`.
struct Bounded {
  Values value, bound;
  explicit Bounded(std::int64_t n)
      : value(static_cast<std::size_t>(n), 0.0), bound(static_cast<std::size_t>(n), 0.0) {}
};

/// Sources of error: probabilities and gradients of scores are rounded once to the dtype before the product;
/// fp32 arithmetic on scores, sums and exponentials has a relative error of u(fp32) (16 + 4 sqrt(length)) of
/// the sum of the terms' magnitudes (as in tolerance.h); the result is rounded. Bounds are sums over each
/// element's own terms.
struct Rounding {
  double dtype, fp32;
  Rounding(DType d, std::int64_t length)
      : dtype(unit_roundoff(d)),
        fp32(unit_roundoff(DType::f32) * (16.0 + 4.0 * std::sqrt(static_cast<double>(length)))) {}
};

struct Forward {
  Bounded out, lse;
};

/// Calls `body(query token, key token, head, kv head)` for every pair that the mask allows.
template <class Body>
void for_each_pair(const Problem& p, const Body& body) {
  const std::vector<std::int32_t> bounds = p.cu_seqlens();
  const std::int64_t group = p.heads.heads / p.heads.kv_heads;
  for (std::size_t b = 0; b + 1 < bounds.size(); ++b)
    for (std::int64_t head = 0; head < p.heads.heads; ++head)
      for (std::int64_t q = bounds[b]; q < bounds[b + 1]; ++q)
        for (std::int64_t k = bounds[b]; k < (p.mask == MaskKind::causal ? q + 1 : bounds[b + 1]); ++k)
          if (p.window == 0 || q - k < p.window) body(q, k, head, head / group);
}

/// Columns of a head's query, key and value in a row of qkv.
inline std::int64_t q_column(const Problem& p, std::int64_t head) { return head * p.heads.head_size; }
inline std::int64_t k_column(const Problem& p, std::int64_t kv) {
  return (p.heads.heads + kv) * p.heads.head_size;
}
inline std::int64_t v_column(const Problem& p, std::int64_t kv) {
  return p.heads.query_columns() + p.heads.key_columns() + kv * p.heads.values_size();
}

/// Scaled score after the softcap, the magnitude that its fp32 error is relative to, and its derivative with
/// respect to the score before the softcap.
struct Score {
  double value, size, slope;
};
inline Score score(const Problem& p, const Values& qkv, std::int64_t q, std::int64_t k, std::int64_t head,
                   std::int64_t kv) {
  const std::int64_t W = p.heads.columns();
  double sum = 0, size = 0;
  for (std::int64_t e = 0; e < p.heads.head_size; ++e) {
    const double term =
        at(qkv, q * W + q_column(p, head) + e) * at(qkv, k * W + k_column(p, kv) + e) * p.scale();
    sum += term;
    size += std::abs(term);
  }
  if (p.softcap == 0) return {sum, size, 1};
  // tanh has an absolute error of a few units in the last place of 1.
  const double t = std::tanh(sum / p.softcap);
  return {p.softcap * t, size + p.softcap, 1 - t * t};
}

inline Forward forward(const Problem& p, const Values& qkv, DType dtype) {
  const std::int64_t T = p.tokens(), V = p.heads.values_size(), H = p.heads.heads, W = p.heads.columns();
  const Rounding u(dtype, std::max({p.heads.head_size, V, p.longest()}));
  Forward f{Bounded(T * H * V), Bounded(H * T)};
  Values sum(static_cast<std::size_t>(H * T), 0.0), largest(static_cast<std::size_t>(H * T), 0.0);
  for_each_pair(p, [&](std::int64_t q, std::int64_t k, std::int64_t head, std::int64_t kv) {
    const auto [s, size, slope] = score(p, qkv, q, k, head, kv);
    at(sum, head * T + q) += std::exp(s);
    at(largest, head * T + q) = std::max(at(largest, head * T + q), size);
  });
  for (std::int64_t i = 0; i < H * T; ++i) {
    at(f.lse.value, i) = std::log(at(sum, i));
    at(f.lse.bound, i) = u.fp32 * (1 + at(largest, i) + std::abs(at(f.lse.value, i)));
  }
  for_each_pair(p, [&](std::int64_t q, std::int64_t k, std::int64_t head, std::int64_t kv) {
    const double prob = std::exp(score(p, qkv, q, k, head, kv).value - at(f.lse.value, head * T + q));
    for (std::int64_t e = 0; e < V; ++e) {
      const double term = prob * at(qkv, k * W + v_column(p, kv) + e);
      at(f.out.value, (q * H + head) * V + e) += term;
      at(f.out.bound, (q * H + head) * V + e) +=
          std::abs(term) * (u.dtype + u.fp32 * (2 + 2 * at(largest, head * T + q)));
    }
  });
  for (std::int64_t i = 0; i < T * H * V; ++i)
    at(f.out.bound, i) += 1.01 * u.dtype * std::abs(at(f.out.value, i));
  return f;
}

inline Bounded backward(const Problem& p, const Values& qkv, const Values& out, const Values& lse,
                        const Values& dout, DType dtype) {
  const std::int64_t T = p.tokens(), E = p.heads.head_size, V = p.heads.values_size(), H = p.heads.heads,
                     W = p.heads.columns();
  const Rounding u(dtype, std::max({E, V, p.longest() * H / p.heads.kv_heads}));
  Bounded dqkv(T * W);
  const auto add = [&](std::int64_t i, double weight, double weight_error, double factor) {
    at(dqkv.value, i) += weight * factor;
    at(dqkv.bound, i) += std::abs(factor) * (weight_error + std::abs(weight) * (u.dtype + u.fp32));
  };
  for_each_pair(p, [&](std::int64_t q, std::int64_t k, std::int64_t head, std::int64_t kv) {
    const auto [s, size, slope] = score(p, qkv, q, k, head, kv);
    const double log_sum = at(lse, head * T + q), prob = std::exp(s - log_sum);
    const double prob_error = prob * u.fp32 * (1 + size + std::abs(log_sum));
    double dprob = 0, dprob_size = 0;
    for (std::int64_t e = 0; e < V; ++e) {
      const double d = at(dout, (q * H + head) * V + e), v = at(qkv, k * W + v_column(p, kv) + e);
      const double o = at(out, (q * H + head) * V + e);
      dprob += d * (v - o);
      dprob_size += std::abs(d * v) + std::abs(d * o);
    }
    const double dscore = prob * dprob * slope * p.scale();
    // d(1 - t^2) = -2 t dt, and t is off by u size / softcap.
    const double slope_error = p.softcap > 0 ? u.fp32 * 2 * size / p.softcap : 0.0;
    const double dscore_error = ((prob * dprob_size * u.fp32 + prob_error * std::abs(dprob)) * slope +
                                 prob * std::abs(dprob) * slope_error) *
                                p.scale();
    for (std::int64_t e = 0; e < E; ++e) {
      const std::int64_t qi = q * W + q_column(p, head) + e, ki = k * W + k_column(p, kv) + e;
      add(qi, dscore, dscore_error, at(qkv, ki));
      add(ki, dscore, dscore_error, at(qkv, qi));
    }
    for (std::int64_t e = 0; e < V; ++e)
      add(k * W + v_column(p, kv) + e, prob, prob_error, at(dout, (q * H + head) * V + e));
  });
  for (std::int64_t i = 0; i < T * W; ++i) at(dqkv.bound, i) += 1.01 * u.dtype * std::abs(at(dqkv.value, i));
  return dqkv;
}

inline void check_bounded(const char* name, const Tensor& actual, const Bounded& reference) {
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

/// The block of a call over whole sequences.
inline kernels::AttentionBlock block_of(const Problem& p, const Tensor& cu_seqlens) {
  kernels::AttentionBlock b =
      kernels::whole_sequences(p.heads, static_cast<float>(p.scale()), cu_seqlens, p.longest());
  b.mask = p.mask;
  b.window = p.window;
  b.softcap = static_cast<float>(p.softcap);
  return b;
}

}  // namespace trainerd::test
