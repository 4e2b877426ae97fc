#include "core/plan/predict/schedule_report.h"

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/plan/cost/cost_model.h"
#include "core/plan/cost/units.h"
#include "io/text/counted.h"
#include "io/text/json.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::plan {

std::string schedule_title(const parallel::ScheduleShape& shape) {
  return std::string(parallel::to_string(shape.kind)) + ", " + io::counted(shape.stages, "stage") + " of " +
         io::counted(shape.virtual_stages, "chunk") + ", " +
         io::counted(shape.microbatches, "microbatch", "es");
}

std::string schedule_text(const parallel::ScheduleShape& shape, const parallel::Timeline& timeline) {
  std::array<char, 96> figures{};
  std::snprintf(figures.data(), figures.size(), ": %.3f ms, bubble %.1f %%\n", 1e3 * timeline.makespan,
                100 * timeline.bubble_fraction);
  return schedule_title(shape) + figures.data();
}

std::string schedule_json(const std::string& job, const parallel::ScheduleShape& shape,
                          const parallel::Timeline& timeline) {
  using Json = nlohmann::ordered_json;
  const Json json{{"job", job},
                  {"schedule", parallel::to_string(shape.kind)},
                  {"stages", shape.stages},
                  {"virtual_stages", shape.virtual_stages},
                  {"microbatches", shape.microbatches},
                  {"pipeline_seconds", timeline.makespan},
                  {"bubble", timeline.bubble_fraction}};
  return io::to_text(json) + "\n";
}

std::string untimed_text(const Plan& plan, const parallel::ScheduleShape& shape,
                         const parallel::Timeline& timeline) {
  return plan.job.name + " on " + plan.topology.device.name + " (" + plan.topology.name +
         "): " + plan.layout + "\n" +
         fmt::format("{}: {:.1f} of {:.1f} GiB\n", plan.fits ? "fits" : "does not fit", gib(plan.peak_bytes),
                     gib(plan.device_bytes)) +
         schedule_title(shape) +
         fmt::format(
             ": bubble {:.1f} % where forward, input gradient and weight gradient take the same time\n",
             100 * timeline.bubble_fraction) +
         "times are not predicted: " + plan.topology.name +
         " has no operator rates: " + how_to_get_rates(plan.topology, plan.job) + ", or give --costs\n";
}

std::string untimed_json(const Plan& plan, const parallel::ScheduleShape& shape,
                         const parallel::Timeline& timeline) {
  using Json = nlohmann::ordered_json;
  const Json json{{"job", plan.job.name},
                  {"schedule", parallel::to_string(shape.kind)},
                  {"stages", shape.stages},
                  {"virtual_stages", shape.virtual_stages},
                  {"microbatches", shape.microbatches},
                  {"timed", false},
                  {"fits", plan.fits},
                  {"peak_bytes", plan.peak_bytes},
                  {"device_bytes", plan.device_bytes},
                  {"bubble", timeline.bubble_fraction}};
  return io::to_text(json) + "\n";
}

}  // namespace trainerd::core::plan
