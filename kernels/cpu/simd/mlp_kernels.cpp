#include "kernels/cpu/simd/vector_functions.h"

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

/// 2 u for GELU's tanh(u), u = sqrt(2/pi) (x + 0.044715 x^3): (1 + tanh u) / 2 is sigmoid(2 u).
inline Vec gelu_twice_u(Vec x) {
  const Vec cubic = fma(x * x, broadcast(0.044715f), broadcast(1.0f));
  return x * cubic * broadcast(1.5957691216057308f);
}

}  // namespace

void glu_forward(DType dtype, const std::byte* gate_up, std::byte* act, std::int64_t rows, std::int64_t ffn) {
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* gate = as<T>(gate_up) + r * 2 * ffn;
      const T* up = gate + ffn;
      T* out = as<T>(act) + r * ffn;
      for_each_vec(ffn, [&](auto get, auto put) {
        const Vec g = get(gate);
        put(out, g * sigmoid(g) * get(up));
      });
    }
  });
}

void glu_backward(DType dtype, const std::byte* dact, const std::byte* gate_up, std::byte* dgate_up,
                  std::byte* act, std::int64_t rows, std::int64_t ffn) {
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* dout = as<T>(dact) + r * ffn;
      const T* gate = as<T>(gate_up) + r * 2 * ffn;
      const T* up = gate + ffn;
      T* dgate = as<T>(dgate_up) + r * 2 * ffn;
      T* dup = dgate + ffn;
      T* out = act == nullptr ? nullptr : as<T>(act) + r * ffn;
      const auto body = [&](auto get, auto put, bool want_act) {
        const Vec g = get(gate), u = get(up), d = get(dout);
        const Vec s = sigmoid(g), silu = g * s;
        // silu' = s (1 + g (1 - s)) = s + silu (1 - s)
        put(dgate, d * u * fma(silu, broadcast(1.0f) - s, s));
        put(dup, d * silu);
        if (want_act) put(out, silu * u);
      };
      if (out == nullptr) for_each_vec(ffn, [&](auto get, auto put) { body(get, put, false); });
      else for_each_vec(ffn, [&](auto get, auto put) { body(get, put, true); });
    }
  });
}

void gelu_forward(DType dtype, const std::byte* x, std::byte* act, std::int64_t n) {
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each_vec(n, [&](auto get, auto put) {
      const Vec v = get(as<T>(x));
      put(as<T>(act), v * sigmoid(gelu_twice_u(v)));
    });
  });
}

void gelu_backward(DType dtype, const std::byte* dact, const std::byte* x, std::byte* dx, std::int64_t n) {
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each_vec(n, [&](auto get, auto put) {
      const Vec v = get(as<T>(x)), d = get(as<T>(dact));
      const Vec s = sigmoid(gelu_twice_u(v));
      // d(2u)/dx = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
      const Vec slope = fma(v * v, broadcast(0.134145f), broadcast(1.0f)) * broadcast(1.5957691216057308f);
      put(as<T>(dx), d * fma(v * s * (broadcast(1.0f) - s), slope, s));
    });
  });
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
