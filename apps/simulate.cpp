#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/output.h"
#include "core/plan/failure_scenario.h"
#include "core/plan/goodput_report.h"
#include "core/plan/schedule_report.h"
#include "core/plan/schedule_trace.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "kernels/base/error.h"
#include "parallel/schedule/svg.h"

namespace trainerd::apps {
namespace {

using core::JobSpec;

constexpr double kMostCells = 4e6;  // computations of a pass in one direction
const std::string kFailuresPrefix = "cluster.failures.";

/// Overrides of the cluster's failures, and those of the job.
struct Overrides {
  std::vector<std::string> job, failures;
};
Overrides sort_overrides(const std::vector<std::string>& all) {
  Overrides sorted;
  for (const std::string& o : all)
    (o.starts_with(kFailuresPrefix) ? sorted.failures : sorted.job).push_back(o);
  return sorted;
}

/// What the options tell of the job's run, which a plan could where they are left out.
core::RunFigures figures_of(const JobSpec&, const SimulateArgs& args) {
  return {.step_seconds = args.step_seconds,
          .checkpoint_bytes = args.checkpoint_bytes,
          .save_seconds = args.save_seconds};
}
/// Likewise the seconds of a chunk's computations.
parallel::ActionCosts costs_of(const JobSpec&, const SimulateArgs& args) {
  for (const double ms : args.costs)
    if (!(ms >= 0 && ms < 1e9)) throw base::spec_error("--costs: times must be 0 or more milliseconds");
  const auto seconds = [&](std::size_t i) { return args.costs[i] * 1e-3; };
  if (seconds(0) <= 0 || seconds(1) + seconds(2) <= 0)
    throw base::spec_error("--costs: a forward and a backward pass take more than 0 milliseconds");
  return {.forward = seconds(0),
          .backward_input = seconds(1),
          .backward_weight = seconds(2),
          .transfer = seconds(3)};
}

void simulate_failures(const JobSpec& job, const SimulateArgs& args,
                       const std::vector<std::string>& overrides) {
  if (!args.svg.empty() || !args.trace.empty())
    throw base::spec_error("--svg and --trace: are pictures of a step; leave --failures out");
  const core::FailureScenario scenario =
      core::failure_scenario(job, core::job_failures(job, overrides), figures_of(job, args));
  const core::GoodputReport report = core::make_goodput_report(
      job.name, job.cluster.preset, parallel::make_grids(job.parallel).dense.ranks(), scenario,
      {.weeks = args.weeks, .runs = args.runs, .seed = args.seed});
  print(args.json ? core::goodput_json(report) : core::goodput_text(report));
}

void simulate_step(const JobSpec& job, const SimulateArgs& args) {
  const parallel::ScheduleShape shape = core::schedule_shape(job);
  const double cells = static_cast<double>(job.microbatches()) * static_cast<double>(shape.chunks());
  if (cells > kMostCells)
    throw base::spec_error("batch.global: " + std::to_string(job.microbatches()) + " microbatches on " +
                           std::to_string(shape.chunks()) +
                           " chunks are too many to replay: make it smaller");
  const parallel::ActionCosts costs = costs_of(job, args);
  const parallel::Timeline timeline = parallel::timeline(parallel::make_schedules(shape), costs);
  base::check(timeline.stuck.empty(), "a schedule of ours does not deadlock");
  if (!args.svg.empty())
    write_file("--svg", args.svg, parallel::schedule_svg(timeline, core::schedule_title(shape)));
  if (!args.trace.empty())
    write_file("--trace", args.trace, io::to_chrome_json(core::schedule_trace(timeline, costs)));
  print(args.json ? core::schedule_json(job.name, shape, timeline) : core::schedule_text(shape, timeline));
}

}  // namespace

int simulate_command(const SimulateArgs& args) {
  const Overrides overrides = sort_overrides(args.overrides);
  const JobSpec job = core::load_job(args.job, overrides.job);
  if (args.failures) {
    simulate_failures(job, args, overrides.failures);
  } else {
    if (!overrides.failures.empty())
      throw base::spec_error("--set " + overrides.failures.front() + ": needs --failures");
    simulate_step(job, args);
  }
  return kExitDone;
}

}  // namespace trainerd::apps
