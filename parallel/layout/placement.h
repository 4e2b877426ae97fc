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
  nvlink,         ///< inside one NVLink domain
  shared_memory,  ///< inside one node without NVLink between them
  rail,           ///< between nodes, each message between network cards of the same number
  network,        ///< between nodes, across card numbers
};
const char* to_string(Link link);

/// Where every rank runs. Ranks fill node after node. Within a node they fill the devices in order, except
/// that every other node of a pipeline with several stages in a node is filled from its far end: then the
/// stages on both sides of a node boundary have the same device number, that is the same rail.
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

/// A placed grid, so that what belongs together travels together.
struct PlacedGrid {
  ProcessGrid grid;
  Topology topology;
  Placement placement;

  std::int64_t virtual_stages = 1;  ///< with more than one, the last stage talks to the first too

  PlacedGrid(const ProcessGrid& of, const Topology& on) : grid(of), topology(on), placement(of, on) {}

  /// The slowest link of a group on `axis`. Pipeline stages talk to their neighbours; on other axes everyone
  /// talks to everyone.
  Link link(std::span<const std::int64_t> group, Axis axis) const;
  /// What is wrong: tensor-parallel groups that leave their NVLink domain (or node, where there is none),
  /// which ranks, and what to do. Empty when nothing is.
  std::string tp_problem() const;

 private:
  bool together(const DeviceLocation& a, const DeviceLocation& b) const;
  Link hop(const DeviceLocation& a, const DeviceLocation& b) const;
  Link all_pairs(std::span<const std::int64_t> group) const;
  std::int64_t rail_of(const DeviceLocation& location) const;
  std::int64_t domain_of(const DeviceLocation& location) const;
};

}  // namespace trainerd::parallel
