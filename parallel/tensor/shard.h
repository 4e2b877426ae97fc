#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/tensor/tensor.h"

namespace trainerd::parallel {

/// How tensor parallelism distributes a tensor.
enum class TensorPlacement : std::uint8_t {
  replicate,  ///< every rank holds all of it, and gets its full gradient
  shard,      ///< divided along `dim`
  partial,    ///< every rank holds all of it, but its gradient is a partial sum, to be summed over tp
};

/// Range of the split dim that is divided evenly on its own (queries, keys, values; gate, up). `unit` is
/// indivisible (the rows of one head). With fewer units than ranks, several ranks hold each unit, and its
/// gradient is summed over them.
struct SplitSegment {
  std::int64_t size = 0;
  std::int64_t unit = 1;
};

/// The smallest part of a tensor that can be updated independently. Cuts over tp and over data-parallel ranks
/// lie between whole blocks, but anywhere in a matrix: an optimizer that needs a whole matrix collects it on
/// one rank.
enum class Granularity : std::uint8_t {
  element,
  block,  ///< boxes of ShardSpec::block from the tensor's first element; the last ones may be smaller
  /// each segment of a tensor with segments of rows (queries, keys, values; gate, up), else the whole tensor,
  /// or as many equal matrices by rows as ShardSpec::stacked says
  matrix,
};

/// Rows and columns of a block; rows only, for a tensor of one dim.
struct BlockShape {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
};

/// How a logical tensor (at most two dims) is distributed over the ranks of a tp group. Initialisation,
/// checkpoints, resharding and the de-duplication of norms all use it. Files hold logical tensors.
struct ShardSpec {
  kernels::Shape logical;
  TensorPlacement placement = TensorPlacement::replicate;
  int dim = 0;
  /// With `shard`, or if matrices are stacked by rows. Their sizes sum to the logical size of `dim`.
  std::vector<SplitSegment> segments;
  /// Each rank's part is padded to a multiple of this many units (vocabulary). 0: no padding, and a size that
  /// tp does not divide is an error.
  std::int64_t pad_to = 0;
  Granularity granularity = Granularity::element;
  BlockShape block = {};     ///< with granularity `block`
  std::int64_t stacked = 1;  ///< with granularity `matrix`, if not split by rows: experts' matrices
  bool owner = true;  ///< false: another pipeline stage also holds it, saves it and counts it in the norm
  /// `logical` is rows [first_row, first_row + logical[0]) of a tensor of `file_rows` rows: of those that
  /// experts of other ranks have the others. 0: it is the whole tensor.
  std::int64_t first_row = 0, file_rows = 0;

  /// Shape in files.
  kernels::Shape file_shape() const {
    kernels::Shape shape = logical;
    if (file_rows > 0) shape.sizes[0] = file_rows;
    return shape;
  }
};

/// Range of the split dim that one rank holds.
struct ShardPiece {
  std::int64_t logical_begin = 0;
  std::int64_t local_begin = 0;
  std::int64_t size = 0;     ///< logical rows or columns, without padding
  bool owned = true;         ///< false: a lower rank also holds it, saves it and counts it
  std::int64_t holders = 1;  ///< number of ranks that hold it, consecutive in the tp group
};

/// Empty, or what is wrong: a segment that neither divides tp nor is divided by it, or a cut through a block.
std::string shard_problem(const ShardSpec& spec, std::int64_t tp);
/// The rank's tensor: the logical one with its split dim divided (and padded).
kernels::Shape local_shape(const ShardSpec& spec, std::int64_t tp);
/// In rising local order. `replicate` and `partial` have one piece: all of dim 0.
std::vector<ShardPiece> shard_pieces(const ShardSpec& spec, std::int64_t tp, std::int64_t tp_rank);

/// Data-parallel parts of the rank's tensor are multiples of this many elements: a row of blocks, which is
/// contiguous in memory. 1 without blocks.
std::int64_t part_multiple(const ShardSpec& spec, std::int64_t tp);

/// One matrix of a tensor of granularity `matrix`: some of its rows, numbered as in files. Each rank of the
/// tp group holds a part of it, at the same range of elements of its local tensor.
struct WholeMatrix {
  std::int64_t first_row = 0, rows = 0, columns = 0;
  std::int64_t local_begin = 0, local_count = 0;
};
/// In order of rows.
std::vector<WholeMatrix> whole_matrices(const ShardSpec& spec, std::int64_t tp);

/// A box of a logical tensor in global coordinates.
struct LogicalBox {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> shape;
};

/// Range of elements of the rank's row-major tensor that is one box of the logical tensor.
struct LocalRun {
  std::int64_t begin = 0;  ///< first element, in the local tensor
  std::int64_t count = 0;
  LogicalBox box;
  bool owned = true;
};

/// The local elements [begin, begin + count) as runs: whole rows where possible, without padding.
std::vector<LocalRun> local_runs(const ShardSpec& spec, std::int64_t tp, std::int64_t tp_rank,
                                 std::int64_t begin, std::int64_t count);

}  // namespace trainerd::parallel
