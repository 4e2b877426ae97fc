#include "parallel/grid.h"

#include "kernels/base/error.h"

namespace trainerd::parallel {
namespace {

constexpr std::size_t index_of(Axis axis) { return static_cast<std::size_t>(axis); }

}  // namespace

const char* to_string(Axis axis) {
  switch (axis) {
    case Axis::tp: return "tp";
    case Axis::cp: return "cp";
    case Axis::ep: return "ep";
    case Axis::dp: return "dp";
    case Axis::pp: return "pp";
  }
  return "?";
}

ProcessGrid::ProcessGrid(const Sizes& sizes, const std::array<Axis, kAxes>& order) : sizes_(sizes), order_(order) {
  for (const std::int64_t size : sizes_) base::check(size >= 1, "every axis of a process grid has at least one rank");
}

std::int64_t ProcessGrid::ranks() const {
  std::int64_t n = 1;
  for (const std::int64_t size : sizes_) n *= size;
  return n;
}

ProcessGrid::Coordinate ProcessGrid::coordinate(std::int64_t rank) const {
  base::check(rank >= 0 && rank < ranks(), "a rank outside the grid");
  Coordinate c{};
  for (const Axis axis : order_) {
    c[index_of(axis)] = rank % size(axis);
    rank /= size(axis);
  }
  return c;
}

std::int64_t ProcessGrid::rank(const Coordinate& coordinate) const {
  std::int64_t rank = 0, stride = 1;
  for (const Axis axis : order_) {
    rank += coordinate[index_of(axis)] * stride;
    stride *= size(axis);
  }
  return rank;
}

std::vector<std::int64_t> ProcessGrid::group(std::int64_t rank, Axis axis) const {
  Coordinate c = coordinate(rank);
  std::vector<std::int64_t> ranks;
  for (std::int64_t i = 0; i < size(axis); ++i) {
    c[index_of(axis)] = i;
    ranks.push_back(this->rank(c));
  }
  return ranks;
}

}  // namespace trainerd::parallel
