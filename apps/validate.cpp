#include <cerrno>
#include <cstdio>

#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/output.h"
#include "core/spec/machines.h"
#include "core/spec/report.h"
#include "core/spec/spec.h"
#include "kernels/base/error.h"
#include "parallel/layout.h"
#include "parallel/placement_svg.h"
#include "parallel/schedule/svg.h"

namespace trainerd::apps {
namespace {

void write_file(const std::string& option, const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int error = errno;
  if (file == nullptr || std::fclose(file) != 0 || !written)
    throw base::spec_error(option + ": cannot write " + path + ": " + base::errno_text(error));
}

/// The pipeline of the job where forward, input gradient and weight gradient take one unit of time each.
std::string schedule_picture(const core::JobSpec& job) {
  const parallel::ScheduleShape shape{.kind = job.parallel.schedule,
                                      .stages = static_cast<int>(job.parallel.pp),
                                      .virtual_stages = static_cast<int>(job.parallel.virtual_stages),
                                      .microbatches = static_cast<int>(job.microbatches()),
                                      .pass = parallel::Pass::train};
  std::vector<std::vector<parallel::Action>> ranks;
  for (int rank = 0; rank < shape.stages; ++rank) ranks.push_back(parallel::make_schedule(shape, rank));
  return parallel::schedule_svg(parallel::timeline(ranks, {}), std::string(parallel::to_string(shape.kind)) + ", " +
                                                                   std::to_string(shape.stages) + " stages of " +
                                                                   std::to_string(shape.virtual_stages) + " chunks, " +
                                                                   std::to_string(shape.microbatches) + " microbatches");
}

}  // namespace

int validate_command(const ValidateArgs& args) {
  const core::JobSpec job = core::load_job(args.job, args.overrides);
  const parallel::PlacedGrid placed = core::place_job(job);
  if (!args.picture.empty()) write_file("--svg", args.picture, parallel::placement_svg(placed));
  if (!args.schedule_picture.empty()) write_file("--schedule-svg", args.schedule_picture, schedule_picture(job));
  print(args.json ? core::job_json(job, placed) : core::to_yaml(job) + core::placement_comments(placed));
  return kExitDone;
}

}  // namespace trainerd::apps
