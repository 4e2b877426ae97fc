#include "core/plan/predict/plan.h"

#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/job_file.h"
#include "apps/output.h"
#include "core/job/job.h"
#include "core/plan/search/search.h"
#include "core/spec/machines.h"
#include "kernels/base/error.h"

namespace trainerd::apps {
namespace {

int search(const core::job::JobSpec& job, const PlanArgs& args) {
  const parallel::Topology topology = machines_of(job, args.calibrate);
  const core::plan::SearchResult result = core::plan::search_layouts(job, topology);
  const bool found = !result.best.empty();
  if (found && !args.out.empty()) write_file("--out", args.out, core::plan::chosen_yaml(job, result));
  print(args.json ? core::plan::search_json(job, topology, result)
                  : core::plan::search_text(job, topology, result));
  if (found && !args.json)
    print(args.out.empty() ? "\n" + core::plan::chosen_yaml(job, result) : "written to " + args.out + "\n");
  return found ? kExitDone : exit_code(base::ErrorKind::capacity);
}

}  // namespace

int plan_command(const PlanArgs& args) {
  std::vector<std::string> overrides = args.overrides;
  if (!args.cluster.empty()) overrides.push_back("cluster.preset=" + args.cluster);
  const core::job::JobSpec job = read_job(args.job, overrides);
  if (args.search) return search(job, args);
  const parallel::Topology topology = machines_of(job, args.calibrate);
  core::plan::Plan plan = core::plan::make_plan(job, topology);
  plan.ramp = core::plan::ramp_plans(job, topology);
  if (!plan.fits) plan.near = core::plan::near_changes(job, topology, core::plan::NoneFits::smallest);
  print(args.json ? core::plan::plan_json(plan, args.tokens) : core::plan::plan_text(plan, args.tokens));
  return plan.fits ? kExitDone : exit_code(base::ErrorKind::capacity);
}

}  // namespace trainerd::apps
