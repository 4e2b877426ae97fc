#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace trainerd::parallel {

/// Axes of the process grid, in the default order: leftmost changes fastest with the rank.
enum class Axis : std::uint8_t { tp, cp, ep, dp, pp };
constexpr int kAxes = 5;
const char* to_string(Axis axis);

/// Pure arithmetic between a rank and its coordinate. Holds no state but the sizes and the order.
class ProcessGrid {
 public:
  using Sizes = std::array<std::int64_t, kAxes>;
  using Coordinate = std::array<std::int64_t, kAxes>;

  /// A grid of one rank.
  ProcessGrid() { sizes_.fill(1); }
  explicit ProcessGrid(const Sizes& sizes, const std::array<Axis, kAxes>& order = {Axis::tp, Axis::cp, Axis::ep, Axis::dp,
                                                                                   Axis::pp});

  std::int64_t size(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  std::int64_t ranks() const;
  Coordinate coordinate(std::int64_t rank) const;
  std::int64_t rank(const Coordinate& coordinate) const;
  /// The ranks that differ from `rank` only on `axis`, in rising coordinate: the group it communicates with there.
  std::vector<std::int64_t> group(std::int64_t rank, Axis axis) const;

 private:
  Sizes sizes_{};
  std::array<Axis, kAxes> order_{Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp};
};

}  // namespace trainerd::parallel
