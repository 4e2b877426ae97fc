#include "core/plan/plan.h"

#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/output.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"

namespace trainerd::apps {

int plan_command(const PlanArgs& args) {
  std::vector<std::string> overrides = args.overrides;
  if (!args.cluster.empty()) overrides.push_back("cluster.preset=" + args.cluster);
  const core::JobSpec job = core::load_job(args.job, overrides);
  core::Plan plan = core::make_plan(job, core::job_topology(job));
  if (!plan.fits) core::find_near_layouts(plan);
  print(args.json ? core::plan_json(plan, args.tokens) : core::plan_text(plan, args.tokens));
  return plan.fits ? kExitDone : exit_code(base::ErrorKind::capacity);
}

}  // namespace trainerd::apps
