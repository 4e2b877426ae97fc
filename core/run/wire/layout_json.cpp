#include "core/run/wire/layout_json.h"

#include <nlohmann/json.hpp>
#include <type_traits>

namespace trainerd::core::run {
namespace {

using nlohmann::json;

/// Calls `visit` with the name and a reference of each option. Binds all members, so that an option that is
/// missing here does not compile.
template <class Options, class Visit>
void each_option(Options& options, const Visit& visit) {
  auto& [tp, pp, dp, cp, ep, etp, ep_capacity, cp_comm, ep_comm, sequence_parallel, tp_overlap_chunks, zero,
         zero_group, offload_params, offload_grads, offload_activations, bucket_bytes, overlap_tp_backward,
         overlap_grad_reduce, overlap_param_gather, overlap_ep, overlap_p2p, schedule, virtual_stages, order,
         allow_tp_across_nodes] = options;
  visit("tp", tp);
  visit("pp", pp);
  visit("dp", dp);
  visit("cp", cp);
  visit("ep", ep);
  visit("etp", etp);
  visit("ep_capacity", ep_capacity);
  visit("cp_comm", cp_comm);
  visit("ep_comm", ep_comm);
  visit("sequence_parallel", sequence_parallel);
  visit("tp_overlap_chunks", tp_overlap_chunks);
  visit("zero", zero);
  visit("zero_group", zero_group);
  visit("offload_params", offload_params);
  visit("offload_grads", offload_grads);
  visit("offload_activations", offload_activations);
  visit("bucket_bytes", bucket_bytes);
  visit("overlap_tp_backward", overlap_tp_backward);
  visit("overlap_grad_reduce", overlap_grad_reduce);
  visit("overlap_param_gather", overlap_param_gather);
  visit("overlap_ep", overlap_ep);
  visit("overlap_p2p", overlap_p2p);
  visit("schedule", schedule);
  visit("virtual_stages", virtual_stages);
  visit("order", order);
  visit("allow_tp_across_nodes", allow_tp_across_nodes);
}

json options_to_json(const parallel::ParallelOptions& options) {
  json out;
  each_option(options, [&out]<class T>(const char* name, const T& value) {
    if constexpr (std::is_enum_v<T>) out[name] = static_cast<int>(value);
    else out[name] = value;
  });
  return out;
}

parallel::ParallelOptions options_from(const json& j) {
  parallel::ParallelOptions options;
  each_option(options, [&j]<class T>(const char* name, T& value) {
    if constexpr (std::is_enum_v<T>) value = static_cast<T>(j.at(name).get<int>());
    else j.at(name).get_to(value);
  });
  return options;
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
