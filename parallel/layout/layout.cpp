#include "parallel/layout/layout.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "parallel/layout/schedule_shape.h"

namespace trainerd::parallel {

const char* to_string(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::gpipe: return "gpipe";
    case ScheduleKind::one_f_one_b: return "1f1b";
    case ScheduleKind::interleaved: return "interleaved";
    case ScheduleKind::zb_h1: return "zb-h1";
    case ScheduleKind::zb_v: return "zb-v";
    case ScheduleKind::v_half: return "v-half";
    case ScheduleKind::v_min: return "v-min";
    case ScheduleKind::dualpipe_v: return "dualpipe-v";
  }
  return "?";
}

namespace {

/// With hybrid sharding `inner` is the ranks that share parts. Otherwise it is the ranks on one node, if that
/// number is the same on every node.
DataParallelLevels levels_of(const ParallelOptions& options, const ProcessGrid& grid,
                             const Topology& topology) {
  const std::int64_t dp = options.gradient_ranks();
  if (options.zero >= 1 && options.zero_group > 0 && options.zero_group < dp)
    return {dp, options.zero_group, true};
  std::int64_t inner = 0;
  for (std::int64_t rank = 0; rank < grid.ranks(); ++rank) {
    if (grid.gradient_first(rank) != rank) continue;
    const std::vector<std::int64_t> group = grid.gradient_group(rank);
    for (std::size_t at = 0; at < group.size();) {
      const std::int64_t node = group[at] / topology.devices_per_node;
      std::int64_t run = 0;
      for (; at < group.size() && group[at] / topology.devices_per_node == node; ++at) ++run;
      if (inner != 0 && run != inner) return {dp, dp, false};
      inner = run;
    }
  }
  return {dp, inner == 1 ? dp : inner, false};
}

}  // namespace

std::int64_t default_bucket_bytes(std::int64_t gradient_ranks) {
  constexpr std::int64_t kMinBytes = std::int64_t{25} << 20, kBytesPerRank = std::int64_t{8} << 20;
  return std::max(kMinBytes, gradient_ranks * kBytesPerRank);
}

Layout resolve_layout(const ParallelOptions& options, const Topology& topology, const ModelCosts& costs,
                      std::int64_t microbatches) {
  Layout layout;
  layout.options = options;
  if (options.bucket_bytes == 0)
    layout.options.bucket_bytes = default_bucket_bytes(options.most_gradient_ranks());
  const GridViews grids = make_grids(options);
  layout.grid = grids.dense, layout.expert_grid = grids.expert;
  const std::int64_t devices = topology.nodes * topology.devices_per_node;
  if (layout.grid.ranks() > devices)
    throw base::capacity_error("the job asks for " + std::to_string(layout.grid.ranks()) + " ranks (" +
                               describe(layout) + ") and there are devices for " + std::to_string(devices));
  const ScheduleShape shape = schedule_shape(options, microbatches);
  const std::string problem = schedule_problem(shape);
  if (!problem.empty()) throw base::spec_error("parallel.schedule: " + problem);
  layout.dp_levels = levels_of(options, layout.grid, topology);
  layout.chunks = split_layers(shape, costs);
  return layout;
}

std::vector<ChunkSpan> chunks_of(const Layout& layout, std::int64_t pipeline_rank) {
  const ScheduleShape shape = schedule_shape(layout.options, 1);
  std::vector<ChunkSpan> chunks;
  for (int i = 0; i < shape.virtual_stages; ++i)
    chunks.push_back(
        layout.chunks[static_cast<std::size_t>(shape.chunk_of(static_cast<int>(pipeline_rank), i))]);
  return chunks;
}

std::string describe(const Layout& layout) {
  std::string text;
  for (const Axis axis : {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp})
    text += std::string(to_string(axis)) + std::to_string(layout.size(axis)) +
            (axis == Axis::ep && layout.options.whole_experts() ? " etp1 " : " ");
  return text + "zero" + std::to_string(layout.options.zero) + " " + to_string(layout.options.schedule);
}

}  // namespace trainerd::parallel
