#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"

// Operations on whole tensors of checkpoints of any layout, in pieces of at most kTensorPieceBytes.

namespace trainerd::io {

/// Most bytes of a tensor that are in memory at once.
inline constexpr std::int64_t kTensorPieceBytes = std::int64_t{16} << 20;

/// Splits `box` into boxes and calls `take` for each, in order: whole rows, or parts of a row that is larger
/// than `most_bytes`.
void for_each_piece(const TensorSlice& box, std::int64_t most_bytes,
                    const std::function<void(const TensorSlice& piece)>& take);

/// Converts elements of a numeric dtype to double; `raw` holds whole elements.
void to_doubles(kernels::DType dtype, std::span<const std::byte> raw, std::vector<double>& out);

/// Difference of one tensor between two checkpoints.
struct TensorDifference {
  std::string name;
  std::string problem = {};  ///< why values cannot be compared: only one has it, or the shapes differ
  std::int64_t unequal = 0;  ///< elements whose bytes differ
  std::int64_t elements = 0;
  double largest = 0;                 ///< max |a - b|; infinite if only one of the two is NaN
  double relative = 0;                ///< `largest` / max |a|
  std::vector<std::int64_t> at = {};  ///< index of an element with the largest difference
};
struct Comparison {
  std::int64_t tensors = 0;                 ///< in either checkpoint
  std::vector<TensorDifference> different;  ///< sorted by name, without those within the tolerance
};
/// Compares all tensors. Two are equal if all bytes are, or if `relative` is at most `tolerance`. Throws
/// CheckpointError if one cannot be read.
Comparison compare_checkpoints(CheckpointReader& a, CheckpointReader& b, double tolerance);

/// Statistics of the values of a tensor.
struct TensorStatistics {
  std::int64_t elements = 0;
  std::int64_t not_finite = 0;
  double least = std::numeric_limits<double>::infinity();  // of the finite elements
  double most = -std::numeric_limits<double>::infinity();
  double mean = 0;
  double root_mean_square = 0;
};
using Statistics = std::map<std::string, TensorStatistics>;  ///< by tensor name
TensorStatistics statistics_of(CheckpointReader& reader, const TensorSlice& whole);

/// Returns for each tensor of a checkpoint the box that covers it, sorted by name.
std::vector<TensorSlice> whole_tensors(const Manifest& manifest);

}  // namespace trainerd::io
