#include "parallel/layout.h"

#include "kernels/base/error.h"

namespace trainerd::parallel {

const char* to_string(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::gpipe: return "gpipe";
    case ScheduleKind::one_f_one_b: return "1f1b";
    case ScheduleKind::interleaved: return "interleaved";
    case ScheduleKind::zb_h1: return "zb-h1";
  }
  return "?";
}

Layout resolve_layout(const ParallelOptions& options, const Topology& topology, std::int64_t layers) {
  Layout layout;
  layout.options = options;
  layout.grid = ProcessGrid({options.tp, options.cp, options.ep, options.dp, options.pp});
  const std::int64_t devices = topology.nodes * topology.devices_per_node;
  if (layout.grid.ranks() > devices)
    throw base::capacity_error("the job asks for " + std::to_string(layout.grid.ranks()) + " ranks (" + describe(layout) +
                               ") and there are devices for " + std::to_string(devices));
  layout.chunks.push_back({0, layers, true, true});
  return layout;
}

std::string describe(const Layout& layout) {
  std::string text;
  for (const Axis axis : {Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp})
    text += std::string(to_string(axis)) + std::to_string(layout.grid.size(axis)) + " ";
  return text + "zero" + std::to_string(layout.options.zero) + " " + to_string(layout.options.schedule);
}

}  // namespace trainerd::parallel
