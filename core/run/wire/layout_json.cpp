#include "core/run/wire/layout_json.h"

#include <nlohmann/json.hpp>

namespace trainerd::core::run {
namespace {

using nlohmann::json;

json options_to_json(const parallel::ParallelOptions& o) {
  return {{"tp", o.tp},
          {"pp", o.pp},
          {"dp", o.dp},
          {"cp", o.cp},
          {"ep", o.ep},
          {"ep_capacity", o.ep_capacity},
          {"cp_comm", static_cast<int>(o.cp_comm)},
          {"ep_comm", static_cast<int>(o.ep_comm)},
          {"sequence_parallel", o.sequence_parallel},
          {"tp_overlap_chunks", o.tp_overlap_chunks},
          {"zero", o.zero},
          {"zero_group", o.zero_group},
          {"bucket_bytes", o.bucket_bytes},
          {"overlap_tp_backward", o.overlap_tp_backward},
          {"overlap_grad_reduce", o.overlap_grad_reduce},
          {"overlap_param_gather", o.overlap_param_gather},
          {"overlap_ep", o.overlap_ep},
          {"overlap_p2p", o.overlap_p2p},
          {"schedule", static_cast<int>(o.schedule)},
          {"virtual_stages", o.virtual_stages},
          {"order", o.order},
          {"allow_tp_across_nodes", o.allow_tp_across_nodes}};
}

parallel::ParallelOptions options_from(const json& j) {
  parallel::ParallelOptions o;
  o.tp = j.at("tp");
  o.pp = j.at("pp");
  o.dp = j.at("dp");
  o.cp = j.at("cp");
  o.ep = j.at("ep");
  o.ep_capacity = j.at("ep_capacity");
  o.cp_comm = static_cast<parallel::ContextComm>(j.at("cp_comm").get<int>());
  o.ep_comm = static_cast<parallel::ExpertComm>(j.at("ep_comm").get<int>());
  o.sequence_parallel = j.at("sequence_parallel");
  o.tp_overlap_chunks = j.at("tp_overlap_chunks");
  o.zero = j.at("zero");
  o.zero_group = j.at("zero_group");
  o.bucket_bytes = j.at("bucket_bytes");
  o.overlap_tp_backward = j.at("overlap_tp_backward");
  o.overlap_grad_reduce = j.at("overlap_grad_reduce");
  o.overlap_param_gather = j.at("overlap_param_gather");
  o.overlap_ep = j.at("overlap_ep");
  o.overlap_p2p = j.at("overlap_p2p");
  o.schedule = static_cast<parallel::ScheduleKind>(j.at("schedule").get<int>());
  o.virtual_stages = j.at("virtual_stages");
  o.order = j.at("order");
  o.allow_tp_across_nodes = j.at("allow_tp_across_nodes");
  return o;
}

}  // namespace

json layout_to_json(const parallel::Layout& layout) {
  json sizes = json::array(), order = json::array(), chunks = json::array();
  for (const parallel::Axis axis : parallel::kDefaultOrder) sizes.push_back(layout.grid.size(axis));
  for (const parallel::Axis axis : layout.grid.order()) order.push_back(static_cast<int>(axis));
  for (const parallel::ChunkSpan& c : layout.chunks)
    chunks.push_back({c.first_layer, c.layers, c.embedding, c.head});
  return {{"sizes", sizes},
          {"order", order},
          {"options", options_to_json(layout.options)},
          {"chunks", chunks},
          {"dp_levels", {layout.dp_levels.size, layout.dp_levels.inner, layout.dp_levels.replicas}}};
}

parallel::Layout layout_from(const json& j) {
  parallel::ProcessGrid::Sizes sizes{};
  parallel::AxisOrder order{};
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    sizes[static_cast<std::size_t>(parallel::kDefaultOrder[axis])] = j.at("sizes").at(axis);
    order[axis] = static_cast<parallel::Axis>(j.at("order").at(axis).get<int>());
  }
  parallel::Layout layout;
  layout.grid = parallel::ProcessGrid(sizes, order);
  layout.options = options_from(j.at("options"));
  layout.expert_grid = parallel::make_grids(layout.options).expert;
  for (const json& c : j.at("chunks")) layout.chunks.push_back({c.at(0), c.at(1), c.at(2), c.at(3)});
  const json& levels = j.at("dp_levels");
  layout.dp_levels = {levels.at(0), levels.at(1), levels.at(2)};
  return layout;
}

}  // namespace trainerd::core::run
