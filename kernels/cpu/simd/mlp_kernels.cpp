#include "kernels/cpu/simd/vector_functions.h"

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

/// 2 u for GELU's tanh(u), u = sqrt(2/pi) (x + 0.044715 x^3): (1 + tanh u) / 2 is sigmoid(2 u).
inline Vec gelu_twice_u(Vec x) {
  const Vec cubic = fma(x * x, broadcast(0.044715f), broadcast(1.0f));
  return x * cubic * broadcast(1.5957691216057308f);
}

/// d(2u)/dx = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
inline Vec gelu_slope(Vec x) {
  return fma(x * x, broadcast(0.134145f), broadcast(1.0f)) * broadcast(1.5957691216057308f);
}

/// Gate and up projection as they are.
struct Unclamped {
  static Vec gate(Vec g) { return g; }
  static Vec up(Vec u) { return u; }
  static Vec gate_gradient(Vec, Vec d) { return d; }
  static Vec up_gradient(Vec, Vec d) { return d; }
};
struct Silu : Unclamped {
  static Vec inner(Vec x) { return x; }
  /// Gradient of x s, where s is the sigmoid of `inner` and `value` is x s: s + x s (1 - s) inner'.
  static Vec gradient(Vec, Vec value, Vec s) { return fma(value, broadcast(1.0f) - s, s); }
};
struct Gelu : Unclamped {
  static Vec inner(Vec x) { return gelu_twice_u(x); }
  static Vec gradient(Vec x, Vec value, Vec s) {
    return fma(value * (broadcast(1.0f) - s), gelu_slope(x), s);
  }
};

struct Clamped {
  // The second operand of min and max is the result if there is a NaN.
  static Vec gate(Vec g) { return min(broadcast(kGateLimit), g); }
  static Vec up(Vec u) {
    return max(broadcast(-kGateLimit), min(broadcast(kGateLimit), u)) + broadcast(1.0f);
  }
  static Vec gate_gradient(Vec g, Vec d) { return select(less(broadcast(kGateLimit), g), zero(), d); }
  static Vec up_gradient(Vec u, Vec d) { return gate_gradient(max(u, zero() - u), d); }
  static Vec inner(Vec x) { return x * broadcast(kGateSlope); }
  static Vec gradient(Vec, Vec value, Vec s) {
    return fma(value * broadcast(kGateSlope), broadcast(1.0f) - s, s);
  }
};

template <class F>
void with_gate(Gate gate, const F& f) {
  if (gate == Gate::silu) f(Silu{});
  else if (gate == Gate::gelu) f(Gelu{});
  else f(Clamped{});
}

template <class T, class Act>
void glu_forward_rows(const std::byte* gate_up, std::byte* act, std::int64_t rows, std::int64_t ffn) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* gate = as<T>(gate_up) + r * 2 * ffn;
    const T* up = gate + ffn;
    T* out = as<T>(act) + r * ffn;
    for_each_vec(ffn, [&](auto get, auto put) {
      const Vec g = Act::gate(get(gate));
      put(out, g * sigmoid(Act::inner(g)) * Act::up(get(up)));
    });
  }
}

template <class T, class Act>
void glu_backward_rows(const std::byte* dact, const std::byte* gate_up, std::byte* dgate_up, std::byte* act,
                       std::int64_t rows, std::int64_t ffn) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* dout = as<T>(dact) + r * ffn;
    const T* gate = as<T>(gate_up) + r * 2 * ffn;
    const T* up = gate + ffn;
    T* dgate = as<T>(dgate_up) + r * 2 * ffn;
    T* dup = dgate + ffn;
    T* out = act == nullptr ? nullptr : as<T>(act) + r * ffn;
    const auto body = [&](auto get, auto put, bool want_act) {
      const Vec in = get(gate), plain = get(up), d = get(dout);
      const Vec g = Act::gate(in), u = Act::up(plain);
      const Vec s = sigmoid(Act::inner(g)), value = g * s;
      put(dgate, Act::gate_gradient(in, d * u * Act::gradient(g, value, s)));
      put(dup, Act::up_gradient(plain, d * value));
      if (want_act) put(out, value * u);
    };
    if (out == nullptr) for_each_vec(ffn, [&](auto get, auto put) { body(get, put, false); });
    else for_each_vec(ffn, [&](auto get, auto put) { body(get, put, true); });
  }
}

}  // namespace

void glu_forward(DType dtype, Gate gate, const std::byte* gate_up, std::byte* act, std::int64_t rows,
                 std::int64_t ffn) {
  with_type(dtype, [&](auto tag) {
    with_gate(gate, [&](auto activation) {
      glu_forward_rows<decltype(tag), decltype(activation)>(gate_up, act, rows, ffn);
    });
  });
}

void glu_backward(DType dtype, Gate gate, const std::byte* dact, const std::byte* gate_up,
                  std::byte* dgate_up, std::byte* act, std::int64_t rows, std::int64_t ffn) {
  with_type(dtype, [&](auto tag) {
    with_gate(gate, [&](auto activation) {
      glu_backward_rows<decltype(tag), decltype(activation)>(dact, gate_up, dgate_up, act, rows, ffn);
    });
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
      put(as<T>(dx), d * fma(v * s * (broadcast(1.0f) - s), gelu_slope(v), s));
    });
  });
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
