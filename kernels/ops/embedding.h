#pragma once

// Arguments of operators: embedding. See ops.h.

#include <cstdint>

#include "kernels/ops/op_class.h"

namespace trainerd::kernels {

/// out[t] = table[tokens[t] - first_row] (+ positions_table[positions[t]]). A token outside the held rows
/// contributes 0.
struct EmbeddingForward {
  Tensor tokens_T;  ///< i32
  Tensor table_VD;
  std::int64_t first_row = 0;
  Tensor positions_T;         ///< i32, optional
  Tensor positions_table_SD;  ///< optional, with `positions_T`
  Tensor out_TD;

  bool operator==(const EmbeddingForward&) const = default;
};
/// Sums dout over equal tokens, in rising order of t, so that the result does not depend on threads.
struct EmbeddingBackward {
  Tensor rows_T;  ///< i32: token or position ids
  std::int64_t first_row = 0;
  Tensor dout_TD;
  Tensor dtable_VD;
  WriteMode mode = WriteMode::accumulate;

  bool operator==(const EmbeddingBackward&) const = default;
};

/// Sets flag[0] to `flag_value` if a token or target is outside [0, vocab); otherwise leaves it unchanged.
struct CheckIds {
  Tensor tokens_T;   ///< i32
  Tensor targets_T;  ///< i32
  std::int64_t vocab = 0;
  Tensor flag;  ///< f32 [1]
  float flag_value = 1;

  bool operator==(const CheckIds&) const = default;
};

inline OpClass op_class(const CheckIds& a) { return memory_class(a.tokens_T); }
inline OpClass op_class(const EmbeddingForward& a) { return memory_class(a.out_TD); }
inline OpClass op_class(const EmbeddingBackward& a) { return memory_class(a.dout_TD); }

}  // namespace trainerd::kernels
