#include "apps/job_file.h"

#include <utility>

#include "apps/nodes.h"
#include "apps/output.h"
#include "core/plan/calibrate/calibrate.h"
#include "core/run/agent/trained_dp.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"

namespace trainerd::apps {

void say(const std::string& line) { print_error("trainerd: " + line); }

core::spec::Machine this_machine_for_slurm(const base::SpecError& error) {
  say("device: auto and dp: auto are by this machine, since Slurm does not say what its nodes have: " +
      std::string(error.what()));
  return core::spec::this_machine();
}

core::spec::Surroundings surroundings_here() {
  return {.environment = process_environment,
          .machine = [] { return core::spec::this_machine(); },
          .trained_dp =
              [](const core::job::JobSpec& job) {
                return core::run::trained_dp(job, [] { return io::s3_settings(process_environment); });
              },
          .remark = say};
}

core::job::JobSpec read_job(const std::string& path, const std::vector<std::string>& overrides,
                            core::spec::Surroundings around) {
  return core::spec::load_job(path, overrides, std::move(around));
}

core::job::JobSpec read_job(const std::string& path, const std::vector<std::string>& overrides) {
  return read_job(path, overrides, surroundings_here());
}

parallel::Topology machines_of(const core::job::JobSpec& job, const std::string& calibrate_seconds) {
  if (calibrate_seconds.empty()) return core::spec::job_topology(job);
  say("measuring this machine for about " + calibrate_seconds +
      " s; `trainerd calibrate --out FILE` keeps what it finds");
  return core::plan::calibrated_topology(job, std::stod(calibrate_seconds));
}

}  // namespace trainerd::apps
