#include "parallel/layout/schedule_shape.h"

#include <algorithm>

namespace trainerd::parallel {
namespace {

std::string number(int n) { return std::to_string(n); }

}  // namespace

ScheduleShape schedule_shape(const ParallelOptions& options, std::int64_t microbatches, Pass pass) {
  return {.kind = options.schedule,
          .stages = static_cast<int>(options.pp),
          .virtual_stages = static_cast<int>(options.virtual_stages),
          .microbatches = static_cast<int>(microbatches),
          .pass = pass,
          .early_receives = options.overlap_p2p};
}

std::string schedule_problem(const ScheduleShape& shape) {
  if (shape.stages < 1)
    return "a pipeline has at least one stage, not " + number(shape.stages) + ": set pp to 1";
  if (shape.microbatches < 1)
    return "a step has at least one microbatch, not " + number(shape.microbatches) + ": the nearest is 1";
  if (shape.virtual_stages < 1)
    return "a stage has at least one chunk, not " + number(shape.virtual_stages) +
           ": set virtual_stages to 1";
  if (const int chunks = shape.stages > 1 ? 2 : 1; goes_back(shape.kind) && shape.virtual_stages != chunks)
    return to_string(shape.kind) + std::string(" has ") +
           std::string(chunks == 1 ? "one chunk on a single stage" : "two chunks on each stage") + ", not " +
           number(shape.virtual_stages) + ": set virtual_stages to " + number(chunks);
  const bool several = shape.kind == ScheduleKind::interleaved || goes_back(shape.kind);
  if (shape.virtual_stages > 1 && !several)
    return number(shape.virtual_stages) + " virtual stages need schedule: interleaved" +
           (shape.virtual_stages == 2 && shape.stages > 1 ? ", zb-v, v-half, v-min or dualpipe-v" : "") +
           "; set it, or set virtual_stages to 1";
  return {};
}

std::vector<int> microbatch_groups(const ScheduleShape& shape) {
  const int groups = std::max(1, shape.microbatches / shape.stages);
  const int size = shape.microbatches / groups, larger = shape.microbatches % groups;
  std::vector<int> sizes(static_cast<std::size_t>(groups), size);
  std::fill_n(sizes.begin(), larger, size + 1);
  return sizes;
}

}  // namespace trainerd::parallel
