#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/layout/options.h"

namespace trainerd::parallel {

/// Axes of the process grid, in the default order: leftmost changes fastest with the rank.
enum class Axis : std::uint8_t { tp, cp, ep, dp, pp };
constexpr int kAxes = 5;
const char* to_string(Axis axis);

/// Order of the axes, the one that changes fastest with the rank first. The default is that of Megatron-LM's
/// rank generator, so that groups equal those it publishes.
using AxisOrder = std::array<Axis, kAxes>;
inline constexpr AxisOrder kDefaultOrder = {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp};

/// "tp-cp-ep-dp-pp".
std::string to_string(const AxisOrder& order);
/// Inverse of `to_string`. Axes that `text` leaves out come last, in the default order. If `text` is invalid:
/// returns false, explains in `problem` and leaves `order` unchanged.
bool parse_order(const std::string& text, AxisOrder& order, std::string& problem);

/// Maps between ranks and coordinates. Its only state is the sizes and the order.
class ProcessGrid {
 public:
  using Sizes = std::array<std::int64_t, kAxes>;
  using Coordinate = std::array<std::int64_t, kAxes>;

  /// A grid of one rank.
  ProcessGrid() { sizes_.fill(1); }
  explicit ProcessGrid(const Sizes& sizes, const AxisOrder& order = kDefaultOrder);

  std::int64_t size(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  const AxisOrder& order() const { return order_; }
  std::int64_t ranks() const;
  /// Difference in rank between neighbours on `axis`.
  std::int64_t stride(Axis axis) const;
  Coordinate coordinate(std::int64_t rank) const;
  std::int64_t rank(const Coordinate& coordinate) const;
  /// The communication group of `rank` on `axis`: the ranks that differ from it only on that axis, in rising
  /// coordinate.
  std::vector<std::int64_t> group(std::int64_t rank, Axis axis) const;
  /// The ranks with the same parameters as `rank`: they differ from it only on dp and cp. In rising order and
  /// at equal distances, `gradient_stride`, from `gradient_first`.
  std::vector<std::int64_t> gradient_group(std::int64_t rank) const;
  std::int64_t gradient_first(std::int64_t rank) const;
  std::int64_t gradient_stride() const;
  /// Every group of `axis`, by rising first rank. Together they contain each rank once.
  std::vector<std::vector<std::int64_t>> groups(Axis axis) const;

 private:
  Sizes sizes_{};
  AxisOrder order_ = kDefaultOrder;
};

/// Two grids over the same ranks. Dense layers use tp, cp, dp, pp (ep is 1). Expert layers divide the ranks
/// of one pipeline stage into tp_e (ParallelOptions::expert_tp), ep and dp_e (cp is 1). Both grids have the
/// same pipeline groups. Both are the dense grid unless ParallelOptions::experts_apart.
struct GridViews {
  ProcessGrid dense;
  ProcessGrid expert;
};

/// Explains what is wrong with the sizes or the order; empty if they are valid.
std::string grid_problem(const ParallelOptions& options);
/// Throws SpecError with `grid_problem`.
GridViews make_grids(const ParallelOptions& options);

/// Maximum ranks of a job: far beyond any machine. No product of axis sizes below it overflows.
inline constexpr std::int64_t kMaxRanks = 1 << 17;

}  // namespace trainerd::parallel
