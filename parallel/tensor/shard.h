#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/tensor/tensor.h"

namespace trainerd::parallel {

/// What tensor parallelism does to a tensor.
enum class TensorPlacement : std::uint8_t {
  replicate,  ///< every rank holds all of it, and gets its whole gradient
  shard,      ///< cut along `dim`
  partial,    ///< every rank holds all of it, but its gradient is a summand: it needs a sum over tp
};

/// A run along the split dim that is cut evenly by itself (queries, keys, values; gate, up). `unit` is what
/// cannot be cut (the rows of one head). Fewer units than ranks: each is held by several ranks, and its
/// gradient needs a sum over them.
struct SplitSegment {
  std::int64_t size = 0;
  std::int64_t unit = 1;
};

/// The smallest part of a tensor that can be updated by itself. A cut over tp or over data-parallel ranks
/// ends at whole blocks, but between any two elements of a matrix: an optimizer that needs a whole matrix
/// collects it at an owner.
enum class Granularity : std::uint8_t {
  element,
  block,   ///< boxes of ShardSpec::block from the tensor's first element on; the last ones may be smaller
  matrix,  ///< each segment of a tensor that is cut by rows (queries, keys, values; gate, up), else all of it
};

/// Rows and columns of a block; of a tensor with one dim the rows alone.
struct BlockShape {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
};

/// How a logical tensor (at most two dims) lies on the ranks of a tp group. The one source for
/// initialisation, checkpoints, resharding and the norm's de-duplication. Files hold logical tensors.
struct ShardSpec {
  kernels::Shape logical;
  TensorPlacement placement = TensorPlacement::replicate;
  int dim = 0;
  std::vector<SplitSegment> segments;  ///< with `shard`; their sizes add up to the logical size of `dim`
  /// Each rank's part is padded to a multiple of this many units (the vocabulary); 0: a size that does not
  /// divide is an error.
  std::int64_t pad_to = 0;
  Granularity granularity = Granularity::element;
  BlockShape block = {};  ///< with granularity `block`
  bool owner = true;      ///< false: another pipeline stage holds it too, saves it and counts it in the norm
};

/// A run of the split dim that one rank holds.
struct ShardPiece {
  std::int64_t logical_begin = 0;
  std::int64_t local_begin = 0;
  std::int64_t size = 0;  ///< logical rows or columns; padding is not in it
  bool owned = true;  ///< false: a rank before this one holds it too, and is the one that saves and counts it
  std::int64_t holders = 1;  ///< ranks that hold it, consecutive in the tp group
};

/// "" or what is wrong: a segment that neither divides nor is divided by tp, or a cut through a block.
std::string shard_problem(const ShardSpec& spec, std::int64_t tp);
/// The rank's tensor: the logical one with the split dim cut (and padded).
kernels::Shape local_shape(const ShardSpec& spec, std::int64_t tp);
/// In rising local order. For `replicate` and `partial` one piece: all of dim 0.
std::vector<ShardPiece> shard_pieces(const ShardSpec& spec, std::int64_t tp, std::int64_t tp_rank);

/// A data-parallel part of the rank's tensor is a multiple of so many elements: a row of blocks, which lie
/// next to each other in memory. 1 without blocks.
std::int64_t part_multiple(const ShardSpec& spec, std::int64_t tp);

/// A matrix that a tensor of granularity `matrix` is made of: some of its logical rows. Each rank of the tp
/// group holds a part of it, the same run of elements of its own tensor.
struct WholeMatrix {
  std::int64_t first_row = 0, rows = 0, columns = 0;
  std::int64_t local_begin = 0, local_count = 0;
};
/// In the order of the rows.
std::vector<WholeMatrix> whole_matrices(const ShardSpec& spec, std::int64_t tp);

/// A box of a logical tensor in global coordinates.
struct LogicalBox {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> shape;
};

/// A run of elements of the rank's row-major tensor that is one box of the logical tensor.
struct LocalRun {
  std::int64_t begin = 0;  ///< element of the local tensor
  std::int64_t count = 0;
  LogicalBox box;
  bool owned = true;
};

/// The local elements [begin, begin + count) as runs: whole rows where they are whole, padding left out.
std::vector<LocalRun> local_runs(const ShardSpec& spec, std::int64_t tp, std::int64_t tp_rank,
                                 std::int64_t begin, std::int64_t count);

}  // namespace trainerd::parallel
