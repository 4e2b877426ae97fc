#include "parallel/tensor/shard.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/memory/memory.h"

namespace trainerd::parallel {
namespace {

/// One segment divided over ranks: the size on each rank, and how many ranks hold each part.
struct Cut {
  std::int64_t local = 0;
  std::int64_t holders = 1;
  bool even = true;
};

Cut cut(const SplitSegment& segment, std::int64_t tp, std::int64_t pad_to) {
  const std::int64_t units = segment.size / segment.unit;
  if (pad_to > 0) {
    const std::int64_t of_rank = (units + tp - 1) / tp;
    return {kernels::align_up(of_rank, pad_to) * segment.unit, 1, true};
  }
  if (units % tp == 0) return {segment.size / tp, 1, true};
  if (units < tp && tp % units == 0) return {segment.unit, tp / units, true};
  return {0, 1, false};
}

/// `cut` of one segment after another. Those of experts are hundreds, all alike.
class Cuts {
 public:
  Cuts(const ShardSpec& spec, std::int64_t tp) : tp_(tp), pad_to_(spec.pad_to) {}

  const Cut& of(const SplitSegment& segment) {
    if (segment.size != last_.size || segment.unit != last_.unit)
      last_ = segment, cut_ = cut(segment, tp_, pad_to_);
    return cut_;
  }

 private:
  std::int64_t tp_, pad_to_;
  SplitSegment last_{.size = -1};
  Cut cut_;
};

/// Empty, or where the parts of a tensor on the tp ranks do not end at whole blocks.
std::string block_problem(const ShardSpec& spec, std::int64_t tp) {
  if (spec.granularity != Granularity::block || tp == 1) return "";
  const std::int64_t size = spec.dim == 0 ? spec.block.rows : spec.block.columns;
  std::int64_t begin = 0;
  Cuts cuts(spec, tp);
  for (const SplitSegment& segment : spec.segments) {
    const std::int64_t local = cuts.of(segment).local;
    if (begin % size != 0 || local % size != 0)
      return "tp " + std::to_string(tp) + " gives each rank " + std::to_string(local) +
             (spec.dim == 0 ? " rows" : " columns") + " from " + std::to_string(begin) +
             " on, which are not whole blocks of " + std::to_string(spec.block.rows) + " x " +
             std::to_string(spec.block.columns);
    begin += segment.size;
  }
  return "";
}

}  // namespace

std::string shard_problem(const ShardSpec& spec, std::int64_t tp) {
  if (spec.placement != TensorPlacement::shard) return "";
  Cuts cuts(spec, tp);
  for (const SplitSegment& segment : spec.segments)
    if (!cuts.of(segment).even)
      return std::to_string(segment.size / segment.unit) + " units of " + std::to_string(segment.unit) +
             " cannot be divided over tp " + std::to_string(tp);
  return block_problem(spec, tp);
}

kernels::Shape local_shape(const ShardSpec& spec, std::int64_t tp) {
  kernels::Shape shape = spec.logical;
  if (spec.placement != TensorPlacement::shard) return shape;
  std::int64_t size = 0;
  Cuts cuts(spec, tp);
  for (const SplitSegment& segment : spec.segments) size += cuts.of(segment).local;
  shape.sizes[static_cast<std::size_t>(spec.dim)] = size;
  return shape;
}

std::vector<ShardPiece> shard_pieces(const ShardSpec& spec, std::int64_t tp, std::int64_t tp_rank) {
  if (spec.placement != TensorPlacement::shard) return {{0, 0, spec.logical[0], tp_rank == 0, tp}};
  const std::string problem = shard_problem(spec, tp);
  base::check(problem.empty(), problem.c_str());
  std::vector<ShardPiece> pieces;
  std::int64_t logical = 0, local = 0;
  Cuts cuts(spec, tp);
  for (const SplitSegment& segment : spec.segments) {
    const Cut c = cuts.of(segment);
    const std::int64_t begin = tp_rank / c.holders * c.local;
    const std::int64_t size = std::clamp<std::int64_t>(segment.size - begin, 0, c.local);
    const ShardPiece piece{logical + begin, local, size, tp_rank % c.holders == 0, c.holders};
    // Segments that follow each other both on the rank and in the tensor (tp 1) become one piece.
    ShardPiece* before = pieces.empty() ? nullptr : &pieces.back();
    if (before != nullptr && before->logical_begin + before->size == piece.logical_begin &&
        before->local_begin + before->size == piece.local_begin && before->owned == piece.owned &&
        before->holders == piece.holders)
      before->size += piece.size;
    else pieces.push_back(piece);
    logical += segment.size;
    local += c.local;
  }
  return pieces;
}

std::int64_t part_multiple(const ShardSpec& spec, std::int64_t tp) {
  if (spec.granularity != Granularity::block) return 1;
  const kernels::Shape local = local_shape(spec, tp);
  return spec.block.rows * (local.ndim == 2 ? local[1] : 1);
}

std::vector<WholeMatrix> whole_matrices(const ShardSpec& spec, std::int64_t tp) {
  base::check(spec.granularity == Granularity::matrix && spec.logical.ndim == 2,
              "a tensor of matrices has two dims");
  const kernels::Shape local = local_shape(spec, tp);
  const bool by_rows = spec.dim == 0 && !spec.segments.empty();
  std::vector<WholeMatrix> matrices;
  std::int64_t row = spec.first_row, begin = 0;
  if (!by_rows) {
    const std::int64_t rows = spec.logical[0] / spec.stacked, count = local.numel() / spec.stacked;
    for (std::int64_t i = 0; i < spec.stacked; ++i)
      matrices.push_back({row + i * rows, rows, spec.logical[1], i * count, count});
    return matrices;
  }
  Cuts cuts(spec, tp);
  for (const SplitSegment& segment : spec.segments) {
    const bool shared = spec.placement == TensorPlacement::shard;
    const std::int64_t count = (shared ? cuts.of(segment).local : segment.size) * local[1];
    matrices.push_back({row, segment.size, local[1], begin, count});
    row += segment.size, begin += count;
  }
  return matrices;
}

std::vector<LocalRun> local_runs(const ShardSpec& spec, std::int64_t tp, std::int64_t tp_rank,
                                 std::int64_t begin, std::int64_t count) {
  const kernels::Shape local = local_shape(spec, tp);
  base::check(local.ndim == 1 || local.ndim == 2, "parameters have one or two dims");
  const bool matrix = local.ndim == 2;
  const bool by_columns = spec.placement == TensorPlacement::shard && spec.dim == 1;
  base::check(!by_columns || spec.segments.size() == 1, "a tensor split by columns has one segment");
  const std::int64_t columns = matrix ? local[1] : 1;
  const std::vector<ShardPiece> pieces = shard_pieces(spec, tp, tp_rank);
  const std::int64_t first_column = by_columns ? pieces[0].logical_begin : 0;
  std::vector<LocalRun> runs;

  // Adds elements [from, to), which are whole rows or a part of one row, in one piece.
  const auto add = [&](std::int64_t from, std::int64_t to, std::int64_t logical_row, bool owned) {
    if (from >= to) return;
    const std::int64_t row = from / columns, column = from % columns;
    LocalRun run{from, to - from, {}, owned};
    if (!matrix) {
      run.box = {{logical_row}, {to - from}};
    } else if (column == 0 && (to - from) % columns == 0) {
      run.box = {{logical_row, first_column}, {(to - from) / columns, columns}};
    } else {
      base::check((to - 1) / columns == row, "a partial run lies in one row");
      run.box = {{logical_row, first_column + column}, {1, to - from}};
    }
    runs.push_back(std::move(run));
  };
  for (const ShardPiece& piece : pieces) {
    const std::int64_t first_row = by_columns ? 0 : piece.local_begin,
                       rows = by_columns ? local[0] : piece.size;
    std::int64_t from = std::max(begin, first_row * columns);
    const std::int64_t to = std::min(begin + count, (first_row + rows) * columns);
    const auto logical_row = [&](std::int64_t element) {
      return spec.first_row + element / columns - first_row + (by_columns ? 0 : piece.logical_begin);
    };
    if (from >= to) continue;
    if (from % columns != 0) {  // the rest of a row whose start is outside the range
      const std::int64_t end = std::min(to, (from / columns + 1) * columns);
      add(from, end, logical_row(from), piece.owned);
      from = end;
    }
    const std::int64_t whole = std::max(from, to / columns * columns);
    if (from < whole) add(from, whole, logical_row(from), piece.owned);
    if (whole < to) add(whole, to, logical_row(whole), piece.owned);
  }
  return runs;
}

}  // namespace trainerd::parallel
