// The MLP's activation functions. Floor = bytes / memory bandwidth, bytes in elements of the activations'
// dtype:
//   glu forward 3 T F (gate, up -> act), backward 5 T F (dact, gate, up -> dgate, dup) and T F more with act,
//   gelu forward 2 T F, backward 3 T F.

#include "kernels/cuda/kernels/flat.cuh"
#include "kernels/cuda/kernels/math.cuh"

namespace trainerd::kernels::cuda {
namespace {

constexpr int kGluThreads = 256;

/// Row and columns of a thread in a block for (row, run of columns), with `chunks` blocks per row.
template <int N>
struct Place {
  std::int64_t row, column;
  __device__ explicit Place(unsigned chunks)
      : row(blockIdx.x / chunks),
        column((static_cast<std::int64_t>(blockIdx.x % chunks) * kGluThreads + threadIdx.x) * N) {}
};

/// 2 u for GELU's tanh(u), u = sqrt(2/pi) (x + 0.044715 x^3): (1 + tanh u) / 2 is sigmoid(2 u).
__host__ __device__ inline float gelu_twice_u(float x) {
  return x * fmaf(x * x, 0.044715f, 1.0f) * 1.5957691216057308f;
}

/// d(2u)/dx = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
__host__ __device__ inline float gelu_slope(float x) {
  return fmaf(x * x, 0.134145f, 1.0f) * 1.5957691216057308f;
}

/// Gate and up projection as they are.
struct Unclamped {
  static __device__ float gate(float g) { return g; }
  static __device__ float up(float u) { return u; }
  static __device__ float gate_gradient(float, float d) { return d; }
  static __device__ float up_gradient(float, float d) { return d; }
};
struct Silu : Unclamped {
  static __device__ float inner(float x) { return x; }
  /// Gradient of x s, where s is the sigmoid of `inner` and `value` is x s: s + x s (1 - s) inner'.
  static __device__ float gradient(float, float value, float s) { return fmaf(value, 1.0f - s, s); }
};
struct Gelu : Unclamped {
  static __device__ float inner(float x) { return gelu_twice_u(x); }
  static __device__ float gradient(float x, float value, float s) {
    return fmaf(value * (1.0f - s), gelu_slope(x), s);
  }
};

struct Clamped {
  // A NaN is neither above nor below, and stays.
  static __device__ float gate(float g) { return g > kGateLimit ? kGateLimit : g; }
  static __device__ float up(float u) { return (u < -kGateLimit ? -kGateLimit : gate(u)) + 1.0f; }
  static __device__ float gate_gradient(float g, float d) { return g > kGateLimit ? 0.0f : d; }
  static __device__ float up_gradient(float u, float d) { return gate_gradient(fabsf(u), d); }
  static __device__ float inner(float x) { return x * kGateSlope; }
  static __device__ float gradient(float, float value, float s) {
    return fmaf(value * kGateSlope, 1.0f - s, s);
  }
};

template <class F>
void with_gate(Gate gate, const F& f) {
  if (gate == Gate::silu) f(Silu{});
  else if (gate == Gate::gelu) f(Gelu{});
  else f(Clamped{});
}

template <class T, int N, class Act>
__global__ void __launch_bounds__(kGluThreads)
    glu_forward_kernel(const T* gate_up, T* act, std::int64_t ffn, unsigned chunks,
                       const std::int32_t* used_rows) {
  const Place<N> place(chunks);
  if (place.column >= ffn || (used_rows != nullptr && place.row >= *used_rows)) return;
  const T* gate = gate_up + place.row * 2 * ffn + place.column;
  float g[N], u[N];
  load<N>(gate, g);
  load<N>(gate + ffn, u);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float x = Act::gate(g[k]);
    u[k] = Act::up(u[k]) * (x * sigmoid_for<T>(Act::inner(x)));
  }
  store<N>(act + place.row * ffn + place.column, u);
}

// dgate_up may be gate_up: a thread reads all it needs before it writes, and no other thread reads what it
// writes.
template <class T, int N, bool kAct, class Act>
__global__ void __launch_bounds__(kGluThreads)
    glu_backward_kernel(const T* dact, const T* gate_up, T* dgate_up, T* act, std::int64_t ffn,
                        unsigned chunks, const std::int32_t* used_rows) {
  const Place<N> place(chunks);
  if (place.column >= ffn || (used_rows != nullptr && place.row >= *used_rows)) return;
  const std::int64_t wide = place.row * 2 * ffn + place.column, narrow = place.row * ffn + place.column;
  float g[N], u[N], d[N], out[N];
  load<N>(gate_up + wide, g);
  load<N>(gate_up + wide + ffn, u);
  load<N>(dact + narrow, d);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float x = Act::gate(g[k]), up = Act::up(u[k]), s = sigmoid_for<T>(Act::inner(x)), value = x * s;
    out[k] = value * up;
    g[k] = Act::gate_gradient(g[k], d[k] * up * Act::gradient(x, value, s));
    u[k] = Act::up_gradient(u[k], d[k] * value);
  }
  store<N>(dgate_up + wide, g);
  store<N>(dgate_up + wide + ffn, u);
  if constexpr (kAct) store<N>(act + narrow, out);
}

template <class T>
struct GeluForwardBody {
  const T* x;
  T* act;
  template <int N>
  __device__ void at(std::int64_t i) const {
    float v[N];
    load<N>(x + i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] *= sigmoid_for<T>(gelu_twice_u(v[k]));
    store<N>(act + i, v);
  }
};

template <class T>
struct GeluBackwardBody {
  const T* dact;
  const T* x;
  T* dx;
  template <int N>
  __device__ void at(std::int64_t i) const {
    float v[N], d[N];
    load<N>(x + i, v);
    load<N>(dact + i, d);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float s = sigmoid_for<T>(gelu_twice_u(v[k]));
      d[k] *= fmaf(v[k] * s * (1.0f - s), gelu_slope(v[k]), s);
    }
    store<N>(dx + i, d);
  }
};

/// Calls `f` with the vector width and the number of blocks per row.
template <class T, class F>
void with_glu_width(bool vectors, std::int64_t ffn, const F& f) {
  if (vectors && ffn % kVec<T> == 0)
    f(std::integral_constant<int, kVec<T>>{}, ceil_div(ffn, kVec<T> * kGluThreads));
  else f(std::integral_constant<int, 1>{}, ceil_div(ffn, kGluThreads));
}

}  // namespace

void glu_forward(const Launch& where, const GluForward& a) {
  const std::int64_t rows = a.act_TF.size(0), ffn = a.act_TF.size(1);
  base::check(a.gate_up_T2F.numel() == 2 * rows * ffn && a.gate_up_T2F.dtype == a.act_TF.dtype,
              "glu: gate_up must be [T, 2F], in the dtype of act");
  with_type(a.act_TF.dtype, "glu: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    with_glu_width<T>(aligned(a.gate_up_T2F, a.act_TF), ffn, [&](auto n, std::int64_t chunks) {
      with_gate(a.gate, [&](auto activation) {
        launch(where, {rows * chunks}, kGluThreads, "glu_forward",
               glu_forward_kernel<T, decltype(n)::value, decltype(activation)>, at<T>(a.gate_up_T2F),
               at<T>(a.act_TF), ffn, static_cast<unsigned>(chunks), at<std::int32_t>(a.used_rows));
      });
    });
  });
}

void glu_backward(const Launch& where, const GluBackward& a) {
  const std::int64_t rows = a.dact_TF.size(0), ffn = a.dact_TF.size(1);
  base::check(
      a.gate_up_T2F.numel() == 2 * rows * ffn && a.dgate_up_T2F.numel() == 2 * rows * ffn &&
          a.gate_up_T2F.dtype == a.dact_TF.dtype && a.dgate_up_T2F.dtype == a.dact_TF.dtype &&
          (!a.act_TF.defined() || (a.act_TF.dtype == a.dact_TF.dtype && a.act_TF.numel() == rows * ffn)),
      "glu: gate_up must be [T, 2F], and all in the dtype of dact");
  with_type(a.dact_TF.dtype, "glu: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    with_glu_width<T>(
        aligned(a.dact_TF, a.gate_up_T2F, a.dgate_up_T2F, a.act_TF), ffn, [&](auto n, std::int64_t chunks) {
          constexpr int N = decltype(n)::value;
          with_gate(a.gate, [&](auto activation) {
            using Act = decltype(activation);
            launch(where, {rows * chunks}, kGluThreads, "glu_backward",
                   a.act_TF.defined() ? glu_backward_kernel<T, N, true, Act>
                                      : glu_backward_kernel<T, N, false, Act>,
                   at<T>(a.dact_TF), at<T>(a.gate_up_T2F), at<T>(a.dgate_up_T2F), at<T>(a.act_TF), ffn,
                   static_cast<unsigned>(chunks), at<std::int32_t>(a.used_rows));
          });
        });
  });
}

void gelu_forward(const Launch& where, const GeluForward& a) {
  base::check(a.act_TF.dtype == a.x_TF.dtype && a.act_TF.numel() == a.x_TF.numel(), "gelu: act must be as x");
  with_type(a.x_TF.dtype, "gelu: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    launch_flat<kVec<T>>(where, a.x_TF.numel(), aligned(a.x_TF, a.act_TF), "gelu_forward",
                         GeluForwardBody<T>{at<T>(a.x_TF), at<T>(a.act_TF)});
  });
}

void gelu_backward(const Launch& where, const GeluBackward& a) {
  base::check(a.dx_TF.dtype == a.x_TF.dtype && a.dx_TF.numel() == a.x_TF.numel() &&
                  a.dact_TF.dtype == a.x_TF.dtype && a.dact_TF.numel() == a.x_TF.numel(),
              "gelu: dx and dact must be as x");
  with_type(a.x_TF.dtype, "gelu: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    launch_flat<kVec<T>>(where, a.x_TF.numel(), aligned(a.dact_TF, a.x_TF, a.dx_TF), "gelu_backward",
                         GeluBackwardBody<T>{at<T>(a.dact_TF), at<T>(a.x_TF), at<T>(a.dx_TF)});
  });
}

}  // namespace trainerd::kernels::cuda
