#include <charconv>
#include <map>

#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/job_file.h"
#include "apps/output.h"
#include "core/job/job.h"
#include "core/plan/cost/cost_model.h"
#include "core/plan/goodput/failure_scenario.h"
#include "core/plan/goodput/goodput_report.h"
#include "core/plan/predict/schedule_report.h"
#include "core/plan/predict/schedule_trace.h"
#include "core/plan/simulate/step_simulation.h"
#include "core/spec/machines.h"
#include "kernels/base/error.h"
#include "parallel/schedule/svg.h"

namespace trainerd::apps {
namespace {

using core::job::JobSpec;

const std::string kFailuresPrefix = "cluster.failures.";

/// Splits overrides into those of the cluster's failures and those of the job.
struct Overrides {
  std::vector<std::string> job, failures;
};
Overrides sort_overrides(const std::vector<std::string>& all) {
  Overrides sorted;
  for (const std::string& o : all)
    (o.starts_with(kFailuresPrefix) ? sorted.failures : sorted.job).push_back(o);
  return sorted;
}

/// Inputs of the simulation: the plan's figures for the job, unless options replace them.
core::plan::RunFigures figures_of(const core::job::JobSpec& job, const SimulateArgs& args) {
  core::plan::RunFigures figures{.step_seconds = args.step_seconds,
                                 .checkpoint_bytes = args.checkpoint_bytes,
                                 .save_seconds = args.save_seconds};
  if (figures.step_seconds && figures.checkpoint_bytes && (figures.save_seconds || !job.checkpoint.async))
    return figures;
  const core::plan::Plan plan = core::plan::make_plan(job, machines_of(job, args.calibrate));
  if (!figures.step_seconds && plan.timed)
    figures.step_seconds = plan.time.step_seconds + plan.verify_seconds;
  if (!figures.checkpoint_bytes) figures.checkpoint_bytes = static_cast<double>(plan.checkpoint.bytes);
  if (!figures.save_seconds && job.checkpoint.async && plan.checkpoint.snapshot_seconds > 0)
    figures.save_seconds = plan.checkpoint.stall_seconds;
  return figures;
}
/// Seconds of a chunk's computations, from the options.
parallel::ActionCosts costs_of(const SimulateArgs& args) {
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

void simulate_failures(const core::job::JobSpec& job, const SimulateArgs& args,
                       const std::vector<std::string>& overrides) {
  if (!args.svg.empty() || !args.trace.empty())
    throw base::spec_error("--svg and --trace: are pictures of a step; leave --failures out");
  const core::plan::FailureScenario scenario =
      core::plan::failure_scenario(job, core::plan::job_failures(job, overrides), figures_of(job, args));
  const core::plan::GoodputReport report = core::plan::make_goodput_report(
      job.name, job.cluster.preset, parallel::make_grids(job.parallel).dense.ranks(), scenario,
      {.weeks = args.weeks, .runs = args.runs, .seed = args.seed});
  print(args.json ? core::plan::goodput_json(report) : core::plan::goodput_text(report));
}

/// "RANK=FACTOR", each rank at most once.
std::map<std::int64_t, double> stragglers_of(const SimulateArgs& args) {
  std::map<std::int64_t, double> stragglers;
  for (const std::string& text : args.stragglers) {
    std::int64_t rank = 0;
    double factor = 0;
    const char* end = text.data() + text.size();
    const auto [equals, wrong_rank] = std::from_chars(text.data(), end, rank);
    const bool read = wrong_rank == std::errc() && equals != end && *equals == '=';
    const auto [rest, wrong_factor] = std::from_chars(read ? equals + 1 : end, end, factor);
    if (!read || wrong_factor != std::errc() || rest != end)
      throw base::spec_error("--straggler: expected RANK=FACTOR, such as 3=1.5, got '" + text + "'");
    if (!stragglers.emplace(rank, factor).second)
      throw base::spec_error("--straggler: rank " + std::to_string(rank) + " is given twice");
  }
  return stragglers;
}

void draw(const SimulateArgs& args, const parallel::Timeline& timeline, const parallel::ScheduleShape& shape,
          const io::Trace& trace) {
  if (!args.svg.empty())
    write_file("--svg", args.svg, parallel::schedule_svg(timeline, core::plan::schedule_title(shape)));
  if (!args.trace.empty()) write_file("--trace", args.trace, io::to_chrome_json(trace));
}

/// Without rates: draws the schedule with one unit of time per computation, and reports the memory.
void simulate_untimed(const core::job::JobSpec& job, const SimulateArgs& args,
                      const parallel::ScheduleShape& shape, const parallel::Topology& topology) {
  const core::plan::Plan plan = core::plan::make_plan(job, topology);
  const parallel::ActionCosts units;
  const parallel::Timeline timeline = parallel::timeline(parallel::make_schedules(shape), units);
  draw(args, timeline, shape, args.trace.empty() ? io::Trace{} : core::plan::schedule_trace(timeline, units));
  print(args.json ? core::plan::untimed_json(plan, shape, timeline)
                  : core::plan::untimed_text(plan, shape, timeline));
}

void simulate_step(const core::job::JobSpec& job, const SimulateArgs& args) {
  const parallel::ScheduleShape shape = parallel::schedule_shape(job.parallel, job.microbatches());
  const core::plan::StepNoise options{
      .jitter = args.jitter, .stragglers = stragglers_of(args), .steps = args.steps, .seed = args.seed};
  if (args.costs.empty()) {
    const parallel::Topology topology = machines_of(job, args.calibrate);
    if (!core::plan::has_rates(topology, job) && options.jitter == 0 && options.stragglers.empty())
      return simulate_untimed(job, args, shape, topology);
    const core::plan::StepSimulation step = core::plan::simulate_step(job, topology, options);
    draw(args, step.timeline, shape, step.trace);
    print(args.json ? core::plan::simulation_json(step, options)
                    : core::plan::simulation_text(step, options));
    return;
  }
  if (options.jitter != 0 || !options.stragglers.empty())
    throw base::spec_error("--costs: are of every rank and exact; leave it out, or --jitter and --straggler");
  const parallel::ActionCosts costs = costs_of(args);
  const parallel::Timeline timeline = parallel::timeline(parallel::make_schedules(shape), costs);
  base::check(timeline.stuck.empty(), "a schedule of ours does not deadlock");
  draw(args, timeline, shape, args.trace.empty() ? io::Trace{} : core::plan::schedule_trace(timeline, costs));
  print(args.json ? core::plan::schedule_json(job.name, shape, timeline)
                  : core::plan::schedule_text(shape, timeline));
}

}  // namespace

int simulate_command(const SimulateArgs& args) {
  const Overrides overrides = sort_overrides(args.overrides);
  const core::job::JobSpec job = read_job(args.job, overrides.job);
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
