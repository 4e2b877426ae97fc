#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"

// Tensors of checkpoints as a whole, whatever layouts saved them: read in pieces of at most kPieceBytes.

namespace trainerd::io {

/// As much of a tensor as is in memory at once.
inline constexpr std::int64_t kTensorPieceBytes = std::int64_t{16} << 20;

/// Calls `take` with boxes that make up `box` in order: whole rows, or parts of one row that is larger than
/// `most_bytes`.
void for_each_piece(const TensorSlice& box, std::int64_t most_bytes,
                    const std::function<void(const TensorSlice& piece)>& take);

/// The values of elements of a dtype that has numbers; `raw` holds whole elements.
void to_doubles(kernels::DType dtype, std::span<const std::byte> raw, std::vector<double>& out);

/// How one tensor differs between two checkpoints.
struct TensorDifference {
  std::string name;
  std::string problem = {};  ///< why values cannot be compared: it is in one alone, or of another shape
  std::int64_t unequal = 0;  ///< elements whose bytes differ
  std::int64_t elements = 0;
  double largest = 0;                 ///< max |a - b|; infinite where one alone is not a number
  double relative = 0;                ///< that, over max |a|
  std::vector<std::int64_t> at = {};  ///< an element where it is
};
struct Comparison {
  std::int64_t tensors = 0;                 ///< of both together
  std::vector<TensorDifference> different;  ///< by name; those within the tolerance are not
};
/// Tensors are equal when all their bytes are, or when `relative` is at most `tolerance`. Throws
/// CheckpointError when one cannot be read.
Comparison compare_checkpoints(CheckpointReader& a, CheckpointReader& b, double tolerance);

/// What a tensor holds.
struct TensorStatistics {
  std::int64_t elements = 0;
  std::int64_t not_finite = 0;
  double least = std::numeric_limits<double>::infinity();  // of the finite ones
  double most = -std::numeric_limits<double>::infinity();
  double mean = 0;
  double root_mean_square = 0;
};
using Statistics = std::map<std::string, TensorStatistics>;  ///< by name
TensorStatistics statistics_of(CheckpointReader& reader, const TensorSlice& whole);

/// The box that is a whole tensor of a checkpoint, for each of its tensors, by name.
std::vector<TensorSlice> whole_tensors(const Manifest& manifest);

}  // namespace trainerd::io
