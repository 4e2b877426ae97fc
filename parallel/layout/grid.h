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

/// The order in which the axes change with the rank, fastest first. The default is that of Megatron-LM's rank
/// generator, so that the groups it publishes are ours.
using AxisOrder = std::array<Axis, kAxes>;
inline constexpr AxisOrder kDefaultOrder = {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp};

/// "tp-cp-ep-dp-pp".
std::string to_string(const AxisOrder& order);
/// Inverse of `to_string`. Axes that `text` leaves out come last, in the default order. False, `order`
/// unchanged and `problem` saying what is wrong, when the text is no such list.
bool parse_order(const std::string& text, AxisOrder& order, std::string& problem);

/// Pure arithmetic between a rank and its coordinate. Holds no state but the sizes and the order.
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
  /// How far apart neighbours on `axis` are in rank.
  std::int64_t stride(Axis axis) const;
  Coordinate coordinate(std::int64_t rank) const;
  std::int64_t rank(const Coordinate& coordinate) const;
  /// The ranks that differ from `rank` only on `axis`, in rising coordinate: the group it communicates with
  /// there.
  std::vector<std::int64_t> group(std::int64_t rank, Axis axis) const;
  /// Every group of `axis`, by rising first rank: together they hold each rank once.
  std::vector<std::vector<std::int64_t>> groups(Axis axis) const;

 private:
  Sizes sizes_{};
  AxisOrder order_ = kDefaultOrder;
};

/// The same ranks seen twice. Dense layers lie on tp, cp, dp, pp (ep is 1). Expert layers carve tp_e, ep and
/// dp_e out of the ranks of one pipeline stage (cp is 1). Both have the same pipeline groups. Without experts
/// (ep 1, no expert tp given) both are the dense one.
struct GridViews {
  ProcessGrid dense;
  ProcessGrid expert;
};

/// What is wrong with the sizes and the order; empty when nothing is. `expert_tp` 0: as the dense layers'.
std::string grid_problem(const ParallelOptions& options, std::int64_t expert_tp = 0);
/// Throws SpecError with `grid_problem`.
GridViews make_grids(const ParallelOptions& options, std::int64_t expert_tp = 0);

/// Most ranks of a job: far beyond any machine, and no product of sizes overflows below it.
inline constexpr std::int64_t kMaxRanks = 1 << 17;

}  // namespace trainerd::parallel
