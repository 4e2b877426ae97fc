#include "parallel/layout/placement.h"

#include <algorithm>
#include <map>
#include <set>

#include "kernels/base/error.h"

namespace trainerd::parallel {
namespace {

using std::to_string;

/// True if every second node of a pipeline is filled in reverse: only if stages divide a node evenly, and
/// nodes divide a pipeline evenly.
bool alternates(const ProcessGrid& grid, const Topology& topology) {
  const std::int64_t per_node = topology.devices_per_node;
  const std::int64_t stride = grid.stride(Axis::pp);
  const std::int64_t pipeline = stride * grid.size(Axis::pp);
  return topology.rails > 0 && stride < per_node && per_node % stride == 0 && pipeline > per_node &&
         pipeline % per_node == 0;
}

std::string rank_list(std::span<const std::int64_t> ranks) {
  std::string text;
  const bool cut = ranks.size() > 16;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (cut && i >= 4 && i + 1 < ranks.size()) {
      if (i == 4) text += " ...";
      continue;
    }
    text.append(text.empty() ? "" : " ").append(to_string(ranks[i]));
  }
  return text;
}

std::int64_t largest_divisor(std::int64_t of, std::int64_t at_most) {
  for (std::int64_t d = std::min(of, at_most); d > 1; --d)
    if (of % d == 0) return d;
  return 1;
}

}  // namespace

const char* to_string(Link link) {
  switch (link) {
    case Link::none: return "none";
    case Link::nvlink: return "nvlink";
    case Link::shared_memory: return "shared memory";
    case Link::rail: return "rail";
    case Link::network: return "network";
  }
  return "?";
}

Placement::Placement(const ProcessGrid& grid, const Topology& topology) {
  const std::int64_t per_node = topology.devices_per_node;
  if (grid.ranks() > topology.devices())
    throw base::capacity_error("the job has " + to_string(grid.ranks()) + " ranks and " + topology.name +
                               " has " + to_string(topology.devices()) + " devices (" +
                               to_string(topology.nodes) +
                               (topology.nodes == 1 ? " node of " : " nodes of ") + to_string(per_node) +
                               "): set cluster.nodes to " +
                               to_string((grid.ranks() + per_node - 1) / per_node) + ", or use fewer ranks");
  const bool alternate = alternates(grid, topology);
  const std::int64_t stride = grid.stride(Axis::pp);
  locations_.reserve(static_cast<std::size_t>(grid.ranks()));
  for (std::int64_t rank = 0; rank < grid.ranks(); ++rank) {
    DeviceLocation location{rank / per_node, rank % per_node};
    const std::int64_t stages_per_node = alternate ? per_node / stride : 1;
    const std::int64_t node_of_pipeline = (rank / stride) % grid.size(Axis::pp) / stages_per_node;
    // Whole stages are swapped; the ranks of a stage keep their order.
    if (alternate && node_of_pipeline % 2 == 1)
      location.device = (stages_per_node - 1 - location.device / stride) * stride + location.device % stride;
    locations_.push_back(location);
  }
}

std::int64_t PlacedGrid::rail_of(const DeviceLocation& location) const {
  return topology.rails == 0 ? location.device : location.device * topology.rails / topology.devices_per_node;
}

std::int64_t PlacedGrid::domain_of(const DeviceLocation& location) const {
  if (topology.nvlink_domain == 0) return location.node;
  return (location.node * topology.devices_per_node + location.device) / topology.nvlink_domain;
}

bool PlacedGrid::together(const DeviceLocation& a, const DeviceLocation& b) const {
  return topology.nvlink_domain > 0 && domain_of(a) == domain_of(b);
}

Link PlacedGrid::hop(const DeviceLocation& a, const DeviceLocation& b) const {
  if (together(a, b)) return Link::nvlink;
  if (a.node == b.node) return Link::shared_memory;
  return topology.rails > 0 && rail_of(a) == rail_of(b) ? Link::rail : Link::network;
}

// Rings and trees choose where they leave a node (or an NVLink domain of several nodes). They stay on rails
// if all of these hold members on the same rails.
Link PlacedGrid::all_pairs(std::span<const std::int64_t> group) const {
  Link worst = Link::none;
  const DeviceLocation& first = placement[group.front()];
  const bool wide = topology.nvlink_domain >= topology.devices_per_node;
  std::map<std::int64_t, std::set<std::int64_t>> rails_of_place;
  auto last = rails_of_place.end();  // consecutive ranks are mostly in the same place
  for (const std::int64_t rank : group) {
    const DeviceLocation& location = placement[rank];
    worst = std::max(worst, hop(first, location));
    const std::int64_t place = wide ? domain_of(location) : location.node;
    if (last == rails_of_place.end() || last->first != place) last = rails_of_place.try_emplace(place).first;
    last->second.insert(rail_of(location));
  }
  if (worst < Link::rail) return worst;
  const auto& rails = rails_of_place.begin()->second;
  const bool same = std::all_of(rails_of_place.begin(), rails_of_place.end(),
                                [&](const auto& place) { return place.second == rails; });
  return topology.rails > 0 && same ? Link::rail : Link::network;
}

Link PlacedGrid::link(std::span<const std::int64_t> group, Axis axis) const {
  if (group.size() < 2) return Link::none;
  if (axis != Axis::pp) return all_pairs(group);
  Link worst = Link::none;
  for (std::size_t i = 0; i + 1 < group.size(); ++i)
    worst = std::max(worst, hop(placement[group[i]], placement[group[i + 1]]));
  if (ring) worst = std::max(worst, hop(placement[group.back()], placement[group.front()]));
  return worst;
}

std::string PlacedGrid::tp_problem() const {
  const std::int64_t tp = grid.size(Axis::tp);
  if (tp == 1) return {};
  const bool nvlink = topology.nvlink_domain > 0;
  const std::int64_t domain = nvlink ? topology.nvlink_domain : topology.devices_per_node;
  const std::string place = nvlink ? "NVLink domain" : "node";
  std::int64_t crossing = 0;
  std::string example;
  for (const std::vector<std::int64_t>& group : grid.groups(Axis::tp)) {
    const std::int64_t home = domain_of(placement[group.front()]);
    const auto away = std::find_if(group.begin(), group.end(),
                                   [&](std::int64_t rank) { return domain_of(placement[rank]) != home; });
    if (away == group.end()) continue;
    if (crossing++ == 0)
      example = "ranks " + rank_list(group) + " are one tensor-parallel group, but rank " +
                to_string(group.front()) + " is in " + place + " " + to_string(home) + " and rank " +
                to_string(*away) + " in " + to_string(domain_of(placement[*away])) + " (of " +
                to_string(domain) + " devices each)";
  }
  if (crossing == 0) return {};
  if (crossing > 1)
    example +=
        ", and " + to_string(crossing - 1) + (crossing == 2 ? " more group" : " more groups") + " like it";
  const std::string fix =
      grid.stride(Axis::tp) > 1
          ? "put tp first in parallel.order"
          : "set parallel.tp to " + to_string(largest_divisor(domain, tp)) + " (nearest valid)";
  return example + "; " + fix + ", or accept the slow link with parallel.allow_tp_across_nodes: true";
}

}  // namespace trainerd::parallel
