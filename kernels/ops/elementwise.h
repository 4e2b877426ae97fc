#pragma once

// Arguments of operators: elementwise and rows. See ops.h.

#include <cstdint>

#include "kernels/ops/op_class.h"

namespace trainerd::kernels {

/// out = a + b. Any may be the same tensor.
struct Add {
  Tensor a;
  Tensor b;
  Tensor out;
};
/// out = x * factor; `out` may be `x`.
struct Scale {
  Tensor x;
  float factor = 1.0f;
  Tensor out;
};
/// out = in, in the dtype of `out`, rounded to nearest even.
struct Cast {
  Tensor in;
  Tensor out;
};

/// out (+)= x[0] + x[1] + ..., in that order, each addition in fp32. What was in `out` is added last.
struct SumParts {
  Tensor x;            ///< fp32 or bf16: parts of the size of `out`, one after the other
  Tensor out;          ///< fp32, apart from `x`
  std::int64_t parts;  ///< at least 1
  WriteMode mode = WriteMode::assign;
};

inline OpClass op_class(const Add& a) { return memory_class(a.out); }
inline OpClass op_class(const Scale& a) { return memory_class(a.x); }
inline OpClass op_class(const Cast& a) { return memory_class(a.out); }
inline OpClass op_class(const SumParts& a) { return memory_class(a.out); }

}  // namespace trainerd::kernels
