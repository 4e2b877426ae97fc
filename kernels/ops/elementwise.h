#pragma once

// Arguments of operators: elementwise and rows. See ops.h.

#include <cstdint>

#include "kernels/ops/op_class.h"

namespace trainerd::kernels {

/// out = a + b. They may be the same tensor.
struct Add {
  Tensor a;
  Tensor b;
  Tensor out;

  bool operator==(const Add&) const = default;
};
/// out = x * factor; `out` may be `x`.
struct Scale {
  Tensor x;
  float factor = 1.0f;
  Tensor out;

  bool operator==(const Scale&) const = default;
};
/// out = in, in the dtype of `out`, rounded to nearest even.
struct Cast {
  Tensor in;
  Tensor out;

  bool operator==(const Cast&) const = default;
};

/// out[i] = x[i] / (1 - rate), or 0 if the element is dropped (inverted dropout; Srivastava et al., JMLR 15,
/// 2014). An element is dropped if `dropout_bits` (kernels/tensor/rng.h) of `key` and `first` + i are below
/// `dropout_threshold(rate)`. `out` may be `x`. The same call on a gradient is the backward.
struct Dropout {
  Tensor x;  ///< f32 or bf16
  Tensor out;
  float rate = 0;  ///< below 1, in steps of 1 / 65536
  std::uint64_t key = 0;
  std::uint64_t first = 0;  ///< index of element 0 among the elements of `key`

  bool operator==(const Dropout&) const = default;
};

/// out (+)= x[0] + x[1] + ..., in that order, each addition in fp32. The previous `out` is added last. A bf16
/// `out` is rounded once, to nearest even.
struct SumParts {
  Tensor x;            ///< fp32 or bf16: parts of the size of `out`, concatenated
  Tensor out;          ///< fp32 or bf16; must not overlap `x`
  std::int64_t parts;  ///< at least 1
  WriteMode mode = WriteMode::assign;

  bool operator==(const SumParts&) const = default;
};

inline OpClass op_class(const Add& a) { return memory_class(a.out); }
inline OpClass op_class(const Scale& a) { return memory_class(a.x); }
inline OpClass op_class(const Cast& a) { return memory_class(a.out); }
inline OpClass op_class(const Dropout& a) { return memory_class(a.x); }
inline OpClass op_class(const SumParts& a) { return memory_class(a.out); }

}  // namespace trainerd::kernels
