#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/layout/grid.h"
#include "parallel/layout/topology.h"

namespace trainerd::parallel {

/// A device of the cluster.
struct DeviceLocation {
  std::int64_t node = 0;
  std::int64_t device = 0;  ///< within the node

  bool operator==(const DeviceLocation&) const = default;
};

/// What carries a group's messages, fastest first.
enum class Link : std::uint8_t {
  none,           ///< a group of one
  nvlink,         ///< inside one node, without NVLink
  shared_memory,  ///< inside one node without NVLink between them
  rail,           ///< between nodes, always between network cards of the same number
  network,        ///< between nodes, across card numbers
};
const char* to_string(Link link);

/// The device of every rank. Ranks fill node after node, and the devices of a node in order. Exception: if
/// several stages share a node, every second node of a pipeline is filled in reverse order of stages. Then
/// the stages on both sides of a node boundary have the same device number, and so the same rail.
class Placement {
 public:
  /// Throws CapacityError when the grid has more ranks than the topology has devices.
  Placement(const ProcessGrid& grid, const Topology& topology);

  const DeviceLocation& operator[](std::int64_t rank) const {
    return locations_[static_cast<std::size_t>(rank)];
  }
  std::int64_t ranks() const { return static_cast<std::int64_t>(locations_.size()); }

 private:
  std::vector<DeviceLocation> locations_;  // by rank
};

/// A process grid, placed on a topology.
struct PlacedGrid {
  ProcessGrid grid;
  ProcessGrid expert_grid;  ///< GridViews::expert; `grid` unless it is set
  Topology topology;
  Placement placement;

  bool ring = false;  ///< the last stage also sends to the first

  PlacedGrid(const ProcessGrid& of, const Topology& on)
      : grid(of), expert_grid(of), topology(on), placement(of, on) {}

  /// The grid that has the axis.
  const ProcessGrid& grid_of(Axis axis) const { return axis == Axis::ep ? expert_grid : grid; }

  /// The slowest link of a group on `axis`. On the pp axis only neighbouring stages communicate; on the
  /// others all pairs do.
  Link link(std::span<const std::int64_t> group, Axis axis) const;
  /// Reports tensor-parallel groups that span several NVLink domains (or nodes, without NVLink): which ranks,
  /// and how to fix it. Empty if there are none.
  std::string tp_problem() const;

 private:
  bool together(const DeviceLocation& a, const DeviceLocation& b) const;
  Link hop(const DeviceLocation& a, const DeviceLocation& b) const;
  Link all_pairs(std::span<const std::int64_t> group) const;
  std::int64_t rail_of(const DeviceLocation& location) const;
  std::int64_t domain_of(const DeviceLocation& location) const;
};

}  // namespace trainerd::parallel
