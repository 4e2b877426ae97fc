#include "core/spec/report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/spec/json.h"
#include "io/text/json.h"

namespace trainerd::core::spec {
namespace {

using Json = nlohmann::ordered_json;
using parallel::Axis;

// A longer table of ranks would not be readable.
constexpr std::int64_t kLargestTable = 64;
constexpr std::size_t kMaxShown = 16;  // ranks per group

std::string counted(std::int64_t n, const std::string& thing) {
  return std::to_string(n) + " " + thing + (n == 1 ? "" : "s");
}

std::string column(const std::string& text) {
  return std::string(text.size() < 8 ? 8 - text.size() : 1, ' ') + text;
}
std::string column(std::int64_t number) { return column(std::to_string(number)); }

std::string group_text(const std::vector<std::int64_t>& group) {
  std::string text = "[";
  for (std::size_t i = 0; i < group.size(); ++i) {
    const bool cut = group.size() > kMaxShown && i >= 3 && i + 1 < group.size();
    if (cut && i > 3) continue;
    text.append(i > 0 ? " " : "").append(cut ? "..." : std::to_string(group[i]));
  }
  return text + "]";
}

std::int64_t place_on(const parallel::PlacedGrid& placed, std::int64_t rank, Axis axis) {
  return placed.grid_of(axis).coordinate(rank)[static_cast<std::size_t>(axis)];
}

std::string axis_line(const parallel::PlacedGrid& placed, Axis axis, bool all_groups) {
  const auto groups = placed.grid_of(axis).groups(axis);
  std::map<parallel::Link, std::int64_t> links;
  for (const auto& group : groups) ++links[placed.link(group, axis)];
  std::string text = std::string("#   ") + parallel::to_string(axis) + " " +
                     std::to_string(placed.grid_of(axis).size(axis)) + ": " +
                     counted(static_cast<std::int64_t>(groups.size()), "group") + " over ";
  bool first = true;
  for (const auto& [link, count] : links) {
    if (!first) text += ", ";
    if (links.size() > 1) text += std::to_string(count) + " x ";
    text += parallel::to_string(link);
    first = false;
  }
  text += ":";
  for (std::size_t i = 0; i < (all_groups ? groups.size() : 1); ++i) text += " " + group_text(groups[i]);
  return text + (all_groups || groups.size() == 1 ? "\n" : " ...\n");
}

void put(Json& object, const std::string& path, Json value) {
  Json* at = &object;
  for (std::size_t begin = 0;;) {
    const std::size_t dot = path.find('.', begin);
    at = &(*at)[path.substr(begin, dot - begin)];
    if (dot == std::string::npos) break;
    begin = dot + 1;
  }
  *at = std::move(value);
}

Json spec_json(const job::JobSpec& job) {
  job::JobSpec copy = job;
  Json spec = Json::object();
  for (const Field& field : fields_of(copy))
    if (Json value = value_json(field); field.idle.empty() && field.written && !value.is_null())
      put(spec, field.path, std::move(value));
  return spec;
}

}  // namespace

std::string placement_comments(const parallel::PlacedGrid& placed) {
  const parallel::ProcessGrid& grid = placed.grid;
  const parallel::Topology& topology = placed.topology;
  std::string text = "# " + counted(grid.ranks(), "rank") + " on " + counted(topology.nodes, "node") +
                     " of " + counted(topology.devices_per_node, "device") + " (" + topology.name + ", " +
                     (topology.ranks_per_device == 1
                          ? ""
                          : "parts, for " + std::to_string(topology.ranks_per_device) + " ranks, of a ") +
                     topology.device.name + "), order " + parallel::to_string(grid.order()) + "\n";
  const bool table = grid.ranks() <= kLargestTable;
  if (table) {
    text += "#" + column("rank") + column("node") + column("device");
    for (const Axis axis : parallel::kDefaultOrder) text += column(parallel::to_string(axis));
    text += "\n";
    for (std::int64_t rank = 0; rank < grid.ranks(); ++rank) {
      const parallel::DeviceLocation& location = placed.placement[rank];
      text += "#" + column(rank) + column(location.node) + column(location.device);
      for (const Axis axis : parallel::kDefaultOrder) text += column(place_on(placed, rank, axis));
      text += "\n";
    }
  }
  for (const Axis axis : parallel::kDefaultOrder)
    if (placed.grid_of(axis).size(axis) > 1) text += axis_line(placed, axis, table);
  return text;
}

std::string job_json(const job::JobSpec& job, const parallel::PlacedGrid& placed) {
  Json out = Json::object();
  out["spec"] = spec_json(job);
  Json& ranks = out["ranks"] = Json::array();
  for (std::int64_t rank = 0; rank < placed.grid.ranks(); ++rank) {
    const parallel::DeviceLocation& location = placed.placement[rank];
    Json row = {{"rank", rank}, {"node", location.node}, {"device", location.device}};
    for (const Axis axis : parallel::kDefaultOrder)
      row[parallel::to_string(axis)] = place_on(placed, rank, axis);
    ranks.push_back(std::move(row));
  }
  out["groups"] = Json::object();
  out["links"] = Json::object();
  for (const Axis axis : parallel::kDefaultOrder) {
    const auto groups = placed.grid_of(axis).groups(axis);
    Json& links = out["links"][parallel::to_string(axis)] = Json::array();
    for (const auto& group : groups) links.push_back(parallel::to_string(placed.link(group, axis)));
    out["groups"][parallel::to_string(axis)] = groups;
  }
  return io::to_text(out) + "\n";
}

}  // namespace trainerd::core::spec
