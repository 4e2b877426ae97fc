#pragma once

// Arguments of operators: reductions. See ops.h.

#include <cstdint>
#include <span>

#include "kernels/ops/op_class.h"

namespace trainerd::kernels {

/// Elements per block of a norm. Fixed, so that the order of the sum depends on nothing else.
constexpr std::int64_t kNormBlock = 16384;
constexpr std::int64_t norm_blocks(std::int64_t numel) { return (numel + kNormBlock - 1) / kNormBlock; }

/// sums[i] = sum of squares of elements [i * kNormBlock, ...) of x, in double.
struct BlockSquareSums {
  Tensor x;
  Tensor sums;        ///< f64 [norm_blocks(numel)]
  bool host = false;  ///< `x` is in host memory

  bool operator==(const BlockSquareSums&) const = default;
};
/// Adds the square sums of several runs of elements in order. Writes total[0], and nonfinite[0]: the first
/// run with a sum that is not finite, or -1. Run i's blocks begin at `first_block[i]` in `sums`; one more
/// entry marks the end. `flag`, if defined, becomes `flag_value` if a sum is not finite and 0 otherwise:
/// ranks reduce it by maximum.
struct TotalSquareSum {
  Tensor sums;  ///< f64
  std::span<const std::int64_t> first_block;
  Tensor total;      ///< f64 [1]
  Tensor nonfinite;  ///< i32 [1]
  Tensor flag = {};  ///< f32 [1], optional
  float flag_value = 1;
};
/// Square sums by groups of the same runs: totals[g] = sum over the blocks of g's runs. Does not change the
/// outputs of TotalSquareSum.
struct GroupSquareSums {
  Tensor sums;  ///< f64
  std::span<const std::int64_t> first_block;
  std::span<const std::int32_t> group_of_run;  ///< less than the number of totals
  Tensor totals;                               ///< f64 [groups]
};
/// out[0] (+)= x[0] + x[1] + ... in double: blocks of 1024, then the blocks in order.
struct OrderedSum {
  Tensor x;    ///< f32
  Tensor out;  ///< f64 [1]
  WriteMode mode = WriteMode::assign;

  bool operator==(const OrderedSum&) const = default;
};
/// out = 64-bit hash of the tensor's bytes, as two i32. Equal bytes give equal hashes on every backend.
struct TensorHash {
  Tensor x;
  Tensor out;         ///< i32 [2]
  bool host = false;  ///< x is in host memory

  bool operator==(const TensorHash&) const = default;
};

inline OpClass op_class(const BlockSquareSums& a) { return memory_class(a.x); }

}  // namespace trainerd::kernels
