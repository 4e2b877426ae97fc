// Flat kernels. Each reads its inputs and writes its output once: floor = bytes / memory bandwidth. Bytes:
// add 3 n, scale and dropout 2 n elements (dropout with one Philox call per eight elements); cast n elements
// of each dtype, copy_rows the same; sum_parts n elements of each part and of out (twice if it accumulates);
// accumulate 4 n + 4 n.

#include <algorithm>

#include "kernels/cuda/kernels/flat.cuh"
#include "kernels/tensor/rng.h"

namespace trainerd::kernels::cuda {
namespace {

template <class T>
struct AddBody {
  const T* a;
  const T* b;
  T* out;
  template <int N>
  __device__ void at(std::int64_t i) const {
    float x[N], y[N];
    load<N>(a + i, x);
    load<N>(b + i, y);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] += y[k];
    store<N>(out + i, x);
  }
};

template <class T>
struct ScaleBody {
  const T* x;
  T* out;
  float factor;
  template <int N>
  __device__ void at(std::int64_t i) const {
    float v[N];
    load<N>(x + i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] *= factor;
    store<N>(out + i, v);
  }
};

template <class T>
struct DropoutBody {
  const T* x;
  T* out;
  std::uint64_t key, first;
  std::uint32_t threshold;
  float scale;
  template <int N>
  __device__ void at(std::int64_t i) const {
    float v[N];
    load<N>(x + i, v);
    const std::uint64_t index = first + static_cast<std::uint64_t>(i);
    auto shared = dropout_call(key, index);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (k > 0 && ((index + k) & 7u) == 0) shared = dropout_call(key, index + k);
      v[k] = dropout_bits(shared, index + k) < threshold ? v[k] * 0.0f : v[k] * scale;
    }
    store<N>(out + i, v);
  }
};

template <class From, class To>
struct CastBody {
  const From* in;
  To* out;
  template <int N>
  __device__ void at(std::int64_t i) const {
    float v[N];
    load<N>(in + i, v);
    store<N>(out + i, v);
  }
};

/// Element i of the copied columns, by rows of `out`.
template <class From, class To>
struct CopyRowsBody {
  const From* in;
  To* out;
  std::int64_t in_stride, out_stride, columns;
  RowOrder order;
  std::int64_t ranks, sequences, chunk_rows;
  template <int N>
  __device__ void at(std::int64_t i) const {
    const std::int64_t row = i / columns, column = i % columns;
    std::int64_t source = row;
    if (order == RowOrder::rank_to_sequence) source = dealt_row(row, ranks, sequences, chunk_rows);
    if (order == RowOrder::sequence_to_rank) source = undealt_row(row, ranks, sequences, chunk_rows);
    float v[N];
    load<N>(in + source * in_stride + column, v);
    store<N>(out + row * out_stride + column, v);
  }
};

template <class T, class Out, bool kAdd>
struct SumPartsBody {
  const T* x;
  Out* out;
  std::int64_t parts, size;
  template <int N>
  __device__ void at(std::int64_t i) const {
    float total[N], v[N];
    load<N>(x + i, total);
    for (std::int64_t p = 1; p < parts; ++p) {
      load<N>(x + p * size + i, v);
#pragma unroll
      for (int k = 0; k < N; ++k) total[k] += v[k];
    }
    if constexpr (kAdd) {
      load<N>(out + i, v);
#pragma unroll
      for (int k = 0; k < N; ++k) total[k] += v[k];
    }
    store<N>(out + i, total);
  }
};

template <bool kAdd>
struct AccumulateBody {
  const float* x;
  Bf16* out;
  template <int N>
  __device__ void at(std::int64_t i) const {
    float v[N];
    load<N>(x + i, v);
    if constexpr (kAdd) {
      float before[N];
      load<N>(out + i, before);
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] += before[k];
    }
    store<N>(out + i, v);
  }
};

}  // namespace

void add(const Launch& where, const Add& a) {
  base::check(a.a.dtype == a.out.dtype && a.b.dtype == a.out.dtype && a.a.numel() == a.out.numel() &&
                  a.b.numel() == a.out.numel(),
              "add: all three alike");
  with_type(a.out.dtype, "add: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    launch_flat<kVec<T>>(where, a.out.numel(), aligned(a.a, a.b, a.out), "add",
                         AddBody<T>{at<T>(a.a), at<T>(a.b), at<T>(a.out)});
  });
}

void scale(const Launch& where, const Scale& a) {
  base::check(a.out.dtype == a.x.dtype && a.out.numel() == a.x.numel(), "scale: out is like x");
  with_type(a.x.dtype, "scale: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    launch_flat<kVec<T>>(where, a.x.numel(), aligned(a.x, a.out), "scale",
                         ScaleBody<T>{at<T>(a.x), at<T>(a.out), a.factor});
  });
}

void dropout(const Launch& where, const Dropout& a) {
  base::check(a.out.dtype == a.x.dtype && a.out.numel() == a.x.numel() && a.rate >= 0 && a.rate < 1,
              "dropout: out is like x, a rate of 0 to 1");
  with_type(a.x.dtype, "dropout: fp32, bf16 or fp16", [&](auto t) {
    using T = decltype(t);
    launch_flat<kVec<T>>(where, a.x.numel(), aligned(a.x, a.out), "dropout",
                         DropoutBody<T>{at<T>(a.x), at<T>(a.out), a.key, a.first, dropout_threshold(a.rate),
                                        dropout_scale(a.rate)});
  });
}

void cast(const Launch& where, const Cast& a) {
  base::check(a.in.numel() == a.out.numel(), "cast: as many elements out as in");
  if (a.in.numel() == 0) return;
  if (a.in.dtype == a.out.dtype)
    return check(cudaMemcpyAsync(a.out.data, a.in.data, static_cast<std::size_t>(a.in.bytes()),
                                 cudaMemcpyDefault, where.stream),
                 "cast: a copy");
  with_types(a.in.dtype, a.out.dtype, [&](auto from, auto to) {
    using From = decltype(from);
    using To = decltype(to);
    // Equal dtypes have been copied above.
    if constexpr (!std::is_same_v<From, To>)
      launch_flat<8>(where, a.in.numel(), aligned(a.in, a.out), "cast",
                     CastBody<From, To>{at<From>(a.in), at<To>(a.out)});
  });
}

void copy_rows(const Launch& where, const CopyRows& a) {
  check_args(a);
  with_types(a.in.dtype, a.out.dtype, [&](auto from, auto to) {
    using From = decltype(from);
    using To = decltype(to);
    constexpr int kN = std::max(kVec<From>, kVec<To>);
    // Every row's first element must be aligned for vectors.
    const bool vectors = aligned(a.in, a.out) && a.columns % kN == 0 && a.in_column % kN == 0 &&
                         a.out_column % kN == 0 && a.in.size(1) % kN == 0 && a.out.size(1) % kN == 0;
    launch_flat<kN>(
        where, a.in.size(0) * a.columns, vectors, "copy_rows",
        CopyRowsBody<From, To>{at<From>(a.in) + a.in_column, at<To>(a.out) + a.out_column, a.in.size(1),
                               a.out.size(1), a.columns, a.order, a.ranks, a.sequences,
                               dealt_chunk_rows(a.in.size(0), a.ranks, a.sequences)});
  });
}

void sum_parts(const Launch& where, const SumParts& a) {
  const std::int64_t n = a.out.numel();
  base::check(a.parts >= 1 && a.x.numel() == a.parts * n, "sum_parts: parts of the size of out");
  with_types(a.x.dtype, a.out.dtype, [&](auto part, auto sum) {
    using T = decltype(part);
    using Out = decltype(sum);
    constexpr int kN = std::max(kVec<T>, kVec<Out>);
    // The start of each part must be aligned for vectors.
    const bool vectors = aligned(a.x, a.out) && n % kN == 0;
    if (a.mode == WriteMode::accumulate)
      launch_flat<kN>(where, n, vectors, "sum_parts",
                      SumPartsBody<T, Out, true>{at<T>(a.x), at<Out>(a.out), a.parts, n});
    else
      launch_flat<kN>(where, n, vectors, "sum_parts",
                      SumPartsBody<T, Out, false>{at<T>(a.x), at<Out>(a.out), a.parts, n});
  });
}

void accumulate(const Launch& where, const Accumulate& a) {
  base::check(a.x.dtype == DType::f32 && a.out.dtype == DType::bf16 && a.x.numel() == a.out.numel(),
              "accumulate: fp32 into as much bf16");
  const bool vectors = aligned(a.x, a.out);
  if (a.mode == WriteMode::accumulate)
    launch_flat<8>(where, a.x.numel(), vectors, "accumulate",
                   AccumulateBody<true>{at<float>(a.x), at<Bf16>(a.out)});
  else
    launch_flat<8>(where, a.x.numel(), vectors, "accumulate",
                   AccumulateBody<false>{at<float>(a.x), at<Bf16>(a.out)});
}

}  // namespace trainerd::kernels::cuda
