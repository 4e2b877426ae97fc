#include "kernels/cpu/simd/vector_functions.h"

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

/// Rounds x to bf16, up if adding 16 random bits to a lane's lower half carries. Lanes that are not finite
/// stay.
inline Vec round_by(Vec x, const std::uint32_t* random, int shift) {
  std::uint32_t lanes[kLanes];
  __builtin_memcpy(lanes, &x, sizeof(lanes));
  for (std::int64_t i = 0; i < kLanes; ++i) {
    const std::uint32_t carried = (lanes[i] + ((random[i] >> shift) & 0xffffu)) & 0xffff0000u;
    lanes[i] = (lanes[i] & 0x7f800000u) == 0x7f800000u ? lanes[i] : carried;
  }
  __builtin_memcpy(&x, lanes, sizeof(lanes));
  return x;
}

template <class G, class P, class W, class M>
void param_run(const ParamRun& a) {
  const G* grads = as<G>(a.grads);
  P* params = as<P>(a.params);
  W* master = as<W>(a.master);
  M *moment1 = as<M>(a.moment1), *moment2 = as<M>(a.moment2);
  const std::uint32_t* random = a.random;
  const Vec factor = broadcast(a.grad_factor), lr = broadcast(a.lr), eps = broadcast(a.eps);
  const Vec b1 = broadcast(a.beta1), b2 = broadcast(a.beta2), decay = broadcast(a.weight_decay);
  const Vec rest1 = broadcast(1.0f - a.beta1), rest2 = broadcast(1.0f - a.beta2);
  const Vec c1 = broadcast(a.correction1), c2 = broadcast(a.correction2);
  const UpdateRule rule = a.rule;
  const auto update = [&](auto get, auto put, bool want_params) {
    const Vec g = get(grads) * factor, before = get(moment1), w = get(master);
    Vec m, last, move;  // `last`: the last moment
    if (rule == UpdateRule::adamw) {
      m = fma(b1, before, rest1 * g);
      last = fma(b2, get(moment2), rest2 * g * g);
      move = m * c1 / (sqrt(last * c2) + eps);
    } else if (rule == UpdateRule::lion) {
      move = sign(fma(b1, before, rest1 * g));
      m = last = fma(b2, before, rest2 * g);
    } else {
      m = last = fma(b1, before, g);
      move = a.nesterov ? fma(b1, m, g) : m;
    }
    const Vec updated = fnma(lr, fma(decay, w, move), w);
    if (random != nullptr && sizeof(M) == 2) last = round_by(last, random, 16);
    if (rule == UpdateRule::adamw) put(moment2, last);
    else m = last;
    put(moment1, m);
    put(master, random != nullptr && sizeof(W) == 2 ? round_by(updated, random, 0) : updated);
    if (want_params) put(params, updated);
    if (random != nullptr) random += kLanes;
  };
  if (params != nullptr) for_each_vec(a.count, [&](auto get, auto put) { update(get, put, true); });
  else for_each_vec(a.count, [&](auto get, auto put) { update(get, put, false); });
}

/// The finaliser of MurmurHash3 (Appleby): every input bit affects every output bit.
inline std::uint32_t mix(std::uint32_t h) {
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

}  // namespace

void add(DType dtype, const std::byte* a, const std::byte* b, std::byte* out, std::int64_t n) {
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each_vec(n, [&](auto get, auto put) { put(as<T>(out), get(as<T>(a)) + get(as<T>(b))); });
  });
}

void scale(DType dtype, const std::byte* x, float factor, std::byte* out, std::int64_t n) {
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each_vec(n, [&](auto get, auto put) { put(as<T>(out), get(as<T>(x)) * broadcast(factor)); });
  });
}

void multiply(DType dtype, const std::byte* x, const float* factors, std::byte* out, std::int64_t n) {
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each_vec(n, [&](auto get, auto put) { put(as<T>(out), get(as<T>(x)) * get(factors)); });
  });
}

void cast(DType from, const std::byte* in, DType to, std::byte* out, std::int64_t n) {
  with_types(from, to, [&](auto source, auto target) {
    for_each_vec(n,
                 [&](auto get, auto put) { put(as<decltype(target)>(out), get(as<decltype(source)>(in))); });
  });
}

void sum_parts(DType dtype, const std::byte* part, std::int64_t parts, std::int64_t stride, DType out_dtype,
               std::byte* out, std::int64_t n, WriteMode mode) {
  with_types(dtype, out_dtype, [&](auto source, auto target) {
    const auto* first = as<decltype(source)>(part);
    auto* sum = as<decltype(target)>(out);
    for_each_vec(n, [&](auto get, auto put) {
      Vec total = get(first);
      for (std::int64_t p = 1; p < parts; ++p) total += get(first + p * stride);
      if (mode == WriteMode::accumulate) total += get(sum);
      put(sum, total);
    });
  });
}

double square_sum(DType dtype, const std::byte* x, std::int64_t n) {
  Wide even = wide_zero(), odd = wide_zero();
  with_type(dtype, [&](auto tag) {
    const auto* p = as<decltype(tag)>(x);
    const auto square = [](Vec v) {
      const Wide w = to_wide(v);
      return w * w;
    };
    std::int64_t i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      even = even + square(load(p + i));
      odd = odd + square(load(p + i + kLanes));
    }
    for_each_vec(n - i, [&](auto get, auto) { even = even + square(get(p + i)); });
  });
  return sum(even + odd);
}

void hash_words(const std::byte* x, std::int64_t index, std::int64_t words, std::uint32_t sums[2]) {
  // Plain loops: the compiler vectorises them, and unsigned sums do not depend on their order.
  const std::uint32_t low = static_cast<std::uint32_t>(index);
  const std::uint32_t high = static_cast<std::uint32_t>(static_cast<std::uint64_t>(index) >> 32);
  std::uint32_t first = 0, second = 0;
  for (std::int64_t i = 0; i < words; ++i) {
    std::uint32_t word;
    __builtin_memcpy(&word, x + 4 * i, 4);
    const std::uint32_t place = low + static_cast<std::uint32_t>(i);
    first += mix(word ^ mix(place * 0x9e3779b1u + high * 0x7feb352du + 0x165667b1u));
    second += mix((word * 0x2c1b3c6du) ^ (place * 0x85ebca77u + high * 0x846ca68bu + 0x27d4eb2fu));
  }
  sums[0] = first;
  sums[1] = second;
}

void param_update(const ParamRun& run) {
  with_state_type(run.moment_dtype, [&](auto m) {
    // Gradients of fp16 parameters are fp32.
    if (run.param_dtype == DType::f16) return param_run<float, Fp16, float, decltype(m)>(run);
    with_state_type(run.grad_dtype, [&](auto g) {
      if (run.master_dtype == DType::bf16) return param_run<decltype(g), Bf16, Bf16, decltype(m)>(run);
      with_state_type(run.param_dtype,
                      [&](auto p) { param_run<decltype(g), decltype(p), float, decltype(m)>(run); });
    });
  });
}

void average(DType dtype, const std::byte* weights, float* average, float decay, std::int64_t n) {
  const Vec kept = broadcast(decay), rest = broadcast(1.0f - decay);
  with_state_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each_vec(
        n, [&](auto get, auto put) { put(average, fma(kept, get(average), rest * get(as<T>(weights)))); });
  });
}

void momentum(const MomentumRun& a) {
  const Vec factor = broadcast(a.grad_factor), mu = broadcast(a.mu), rest = broadcast(1.0f - a.mu);
  with_state_type(a.grad_dtype, [&](auto g_tag) {
    with_state_type(a.momentum_dtype, [&](auto m_tag) {
      const auto* grads = as<decltype(g_tag)>(a.grads);
      auto* kept = as<decltype(m_tag)>(a.momentum);
      for_each_vec(a.count, [&](auto get, auto put) {
        const Vec g = rest * (get(grads) * factor);
        const Vec m = fma(mu, get(kept), g);
        // The same expression for full vectors and tails, so that the direction does not depend on where a
        // run is split.
        put(kept, m);
        put(a.direction, a.nesterov ? fma(mu, m, g) : m);
      });
    });
  });
}

void direction(const DirectionRun& a) {
  const Vec lr = broadcast(a.lr), scale = broadcast(a.scale), decay = broadcast(a.weight_decay);
  const auto run = [&](auto p_tag, auto w_tag) {
    using W = decltype(w_tag);
    auto* params = as<decltype(p_tag)>(a.params);
    W* master = as<W>(a.master);
    const std::uint32_t* random = a.random;
    for_each_vec(a.count, [&](auto get, auto put) {
      const Vec w = get(master);
      const Vec updated = fnma(lr, fma(decay, w, scale * get(a.direction)), w);
      put(master, random != nullptr && sizeof(W) == 2 ? round_by(updated, random, 0) : updated);
      if (params != nullptr) put(params, updated);
      if (random != nullptr) random += kLanes;
    });
  };
  if (a.master_dtype == DType::bf16) return run(Bf16{}, Bf16{});
  with_type(a.param_dtype, [&](auto p) { run(p, float{}); });
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
