#include "kernels/cpu/simd/vector_functions.h"

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

// Columns whose maximum and exponentials are computed together, so that they stay in the first-level cache in
// between.
constexpr std::int64_t kChunk = 4096;

/// Number of held columns that are real vocabulary, not padding.
template <class Args>
std::int64_t real_columns(const Args& a) {
  const std::int64_t held = a.logits_TV.size(1), left = a.vocab - a.first_row;
  return left < 0 ? 0 : left < held ? left : held;
}

/// Logits without a softcap.
struct Uncapped {
  explicit Uncapped(float) {}
  Vec of(Vec x) const { return x; }
  float of(float x) const { return x; }
  float sloped(float, float dx) const { return dx; }
  Vec gradient(Vec x, Vec shift, Vec scale) const { return exp(x - shift) * scale; }
  Vec gradient(Vec x, Vec shift, Vec scale, Vec less) const { return exp(x - shift) * scale - less; }
};
/// Logits with a softcap.
struct Capped {
  float cap;
  explicit Capped(float softcap) : cap(softcap) {}
  Tanh inner(Vec x) const { return tanh(x * broadcast(1.0f / cap)); }
  Vec of(Vec x) const { return inner(x).value * broadcast(cap); }
  float of(float x) const { return max_of(of(broadcast(x))); }
  /// Converts a gradient of the capped logit to one of the logit.
  float sloped(float x, float dx) const { return max_of(inner(broadcast(x)).slope) * dx; }
  /// scale e^(capped - shift) - less, as a gradient with respect to the logit.
  Vec gradient(Vec x, Vec shift, Vec scale, Vec less = zero()) const {
    const Tanh t = inner(x);
    return (exp(t.value * broadcast(cap) - shift) * scale - less) * t.slope;
  }
};

template <class F>
void with_cap(float softcap, const F& f) {
  if (softcap > 0) f(Capped(softcap));
  else f(Uncapped(softcap));
}

/// sum of exp(x - top) over n elements
template <class T>
float sum_exp(const T* x, std::int64_t n, float top, Uncapped) {
  Vec total = zero();
  for_each_vec(
      n, [&](auto get, auto) { total += exp(get(x) - broadcast(top)); }, -__builtin_inff());
  return sum(total);
}

/// sum of the capped x over n elements
template <class T, class Cap>
float sum_of(const T* x, std::int64_t n, Cap cap) {
  Vec total = zero();
  for_each_vec(
      n, [&](auto get, auto) { total += cap.of(get(x)); }, 0.0f);
  return sum(total);
}

/// The tail needs a mask: no fill value of absent lanes has a capped value of -infinity.
template <class T>
float sum_exp(const T* x, std::int64_t n, float top, Capped cap) {
  Vec total = zero();
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) total += exp(cap.of(load(x + i)) - broadcast(top));
  if (i < n)
    total += select(first_lanes(n - i), exp(cap.of(load_tail(x + i, n - i)) - broadcast(top)), zero());
  return sum(total);
}

template <class T, class Cap>
void stats_rows(const CeStats& a, Cap cap, std::int64_t begin, std::int64_t end) {
  const std::int64_t v = a.logits_TV.size(1), n = real_columns(a);
  for (std::int64_t t = begin; t < end; ++t) {
    const T* row = at<T>(a.logits_TV, t * v);
    float top = -__builtin_inff(), total = 0.0f, logits = 0.0f;
    for (std::int64_t c = 0; c < n; c += kChunk) {
      const std::int64_t width = n - c < kChunk ? n - c : kChunk;
      Vec highest = broadcast(-__builtin_inff());
      for_each_vec(
          width, [&](auto get, auto) { highest = max(highest, get(row + c)); }, -__builtin_inff());
      const float high = cap.of(max_of(highest));  // the softcap is monotonic
      if (high > top) {
        total *= __builtin_expf(top - high);
        top = high;
      }
      // If all logits so far are -infinity there is no finite maximum to subtract, and all exponentials are
      // zero. A NaN is never the maximum, so it reaches this sum.
      total += sum_exp(row + c, width, top == -__builtin_inff() ? 0.0f : top, cap);
      if (a.label_smoothing > 0.0f) logits += sum_of(row + c, width, cap);
    }
    const std::int64_t target = at<std::int32_t>(a.targets_T)[t] - a.first_row;
    at<float>(a.max_T)[t] = top;
    at<float>(a.sum_exp_T)[t] = total;
    float expected = target >= 0 && target < n ? cap.of(wide(row[target])) : 0.0f;
    if (a.label_smoothing > 0.0f)
      expected =
          (1.0f - a.label_smoothing) * expected + a.label_smoothing / static_cast<float>(a.vocab) * logits;
    at<float>(a.target_logit_T)[t] = expected;
  }
}

template <class T, class Cap>
void finish_rows(const CeFinish& a, Cap cap, std::int64_t begin, std::int64_t end) {
  const std::int64_t v = a.logits_TV.size(1), n = real_columns(a);
  const float loss_scale = a.loss_scale.data == nullptr ? 1.0f : *at<float>(a.loss_scale);
  for (std::int64_t t = begin; t < end; ++t) {
    const float weight = at<float>(a.loss_weight_T)[t];
    const float top = at<float>(a.max_T)[t], total = at<float>(a.sum_exp_T)[t],
                lse = top + __builtin_logf(total);
    // A token without weight is padding: it adds nothing, whatever its logits are.
    at<float>(a.loss_T)[t] = weight == 0.0f ? 0.0f : weight * (lse - at<float>(a.target_logit_T)[t]);
    if (a.z_loss > 0.0f) at<float>(a.z_loss_T)[t] = weight == 0.0f ? 0.0f : weight * a.z_loss * lse * lse;
    if (a.want == CeFinish::Want::loss) continue;
    T* row = at<T>(a.logits_TV, t * v);
    const float factor = weight * a.grad_scale * loss_scale;
    if (factor == 0.0f) {
      clear(row, v);
      continue;
    }
    const std::int64_t target = at<std::int32_t>(a.targets_T)[t] - a.first_row;
    const bool held = target >= 0 && target < n;
    const float target_logit = held ? wide(row[target]) : 0.0f;
    // Factors of each column's probability and of the target, and what smoothing subtracts from every column.
    const float pull = a.z_loss > 0.0f ? 1.0f + 2.0f * a.z_loss * lse : 1.0f,
                every = a.label_smoothing / static_cast<float>(a.vocab),
                on_target = 1.0f - a.label_smoothing + every;
    const Vec shift = broadcast(top), scale = broadcast(factor * pull / total);
    if (a.label_smoothing > 0.0f) {
      const Vec less = broadcast(factor * every);
      for_each_vec(n, [&](auto get, auto put) { put(row, cap.gradient(get(row), shift, scale, less)); });
    } else {
      for_each_vec(n, [&](auto get, auto put) { put(row, cap.gradient(get(row), shift, scale)); });
    }
    if (held) {
      const float p = __builtin_expf(cap.of(target_logit) - top) / total;
      store_tail(row + target, broadcast(cap.sloped(target_logit, factor * (pull * p - on_target))), 1);
    }
    clear(row + n, v - n);
  }
}

}  // namespace

void ce_stats(const CeStats& a, std::int64_t begin, std::int64_t end) {
  with_type(a.logits_TV.dtype, [&](auto t) {
    with_cap(a.softcap, [&](auto cap) { stats_rows<decltype(t)>(a, cap, begin, end); });
  });
}

void ce_finish(const CeFinish& a, std::int64_t begin, std::int64_t end) {
  with_type(a.logits_TV.dtype, [&](auto t) {
    with_cap(a.softcap, [&](auto cap) { finish_rows<decltype(t)>(a, cap, begin, end); });
  });
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
