#include "parallel/layout/schedule_shape.h"

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
  if (shape.virtual_stages > 1 && shape.kind != ScheduleKind::interleaved)
    return number(shape.virtual_stages) +
           " virtual stages need schedule: interleaved; set it, or set virtual_stages to 1";
  // The turns of `stages` microbatches must come out even; evaluation has no backward that a short turn would
  // hold up.
  const int over = shape.microbatches % shape.stages;
  if (shape.virtual_stages > 1 && shape.pass == Pass::train && over != 0) {
    const int below = shape.microbatches - over, above = below + shape.stages;
    const std::string nearest =
        below == 0 ? "nearest is " + number(above) : "nearest are " + number(below) + " and " + number(above);
    return "schedule: interleaved with " + number(shape.stages) + " stages takes a multiple of " +
           number(shape.stages) + " microbatches, and a step has " + number(shape.microbatches) + ": the " +
           nearest;
  }
  return {};
}

}  // namespace trainerd::parallel
