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

inline OpClass op_class(const Add& a) { return memory_class(a.out); }
inline OpClass op_class(const Scale& a) { return memory_class(a.x); }
inline OpClass op_class(const Cast& a) { return memory_class(a.out); }

}  // namespace trainerd::kernels
