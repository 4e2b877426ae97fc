#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/job_file.h"
#include "apps/output.h"
#include "core/hf/weight_source.h"
#include "core/plan/predict/schedule_report.h"
#include "core/run/worker/run_tokenizer.h"
#include "core/spec/machines.h"
#include "core/spec/report.h"
#include "core/spec/spec.h"
#include "io/tokens/source_files.h"
#include "kernels/base/error.h"
#include "parallel/layout/placement_svg.h"
#include "parallel/schedule/svg.h"

namespace trainerd::apps {
namespace {

/// The job's pipeline with one unit of time for each forward, input gradient and weight gradient.
std::string schedule_svg(const core::job::JobSpec& job) {
  const parallel::ScheduleShape shape = parallel::schedule_shape(job.parallel, job.microbatches());
  return parallel::schedule_svg(parallel::timeline(parallel::make_schedules(shape), {}),
                                core::plan::schedule_title(shape));
}

/// Data that is not on this machine is not checked; a remark says so.
void check_tokenizer(const core::job::JobSpec& job) {
  if (job.model.from.empty() || job.data.format == io::DataFormat::synthetic) return;
  const std::string directory = core::hf::open_weights(job.model.from)->tokenizer();
  if (directory.empty()) return;
  std::string problem;
  try {
    if (job.data.format == io::DataFormat::tokens && io::reads_objects(job.data))
      throw base::data_error("it is in an object store, and a run reads it");
    problem = core::run::other_tokenizer(job, directory, {});
  } catch (const base::DataError& error) {
    say(std::string("the data's tokenizer was not compared with model.from's: ") + error.what());
  }
  if (!problem.empty()) throw base::data_error(problem);
}

}  // namespace

int validate_command(const ValidateArgs& args) {
  const core::job::JobSpec job = read_job(args.job, args.overrides);
  check_tokenizer(job);
  const parallel::PlacedGrid placed = core::spec::place_job(job, core::spec::Absent::assumed);
  if (!args.svg.empty()) write_file("--svg", args.svg, parallel::placement_svg(placed));
  if (!args.schedule_svg.empty()) write_file("--schedule-svg", args.schedule_svg, schedule_svg(job));
  print(args.json ? core::spec::job_json(job, placed)
                  : core::spec::to_yaml(job) + core::spec::placement_comments(placed));
  return kExitDone;
}

}  // namespace trainerd::apps
