#include "core/plan/goodput/failure_scenario.h"

#include <algorithm>
#include <cmath>

#include "core/spec/cluster.h"
#include "core/spec/machines.h"
#include "kernels/base/error.h"

namespace trainerd::core::plan {
namespace {

/// Number of data-parallel replicas that fit on the remaining nodes, in whole groups that share experts.
std::int64_t replicas(std::int64_t nodes, std::int64_t devices_per_node, const parallel::ParallelOptions& p) {
  const std::int64_t left = std::min(p.dp, nodes * devices_per_node / (p.ranks() / p.dp));
  return left - left % p.dp_multiple();
}

std::vector<double> speeds(const spec::FailureSpec& spec, const FailureScenario& s,
                           std::int64_t devices_per_node, const parallel::ParallelOptions& p) {
  std::vector<double> table{1};
  for (std::int64_t missing = 1; spec.elastic && missing < s.nodes; ++missing) {
    if (spec.replan) {
      if ((s.nodes - missing) * devices_per_node < spec.min_replicas) break;
      table.push_back(static_cast<double>(s.nodes - missing) / static_cast<double>(s.nodes));
      continue;
    }
    const std::int64_t left = replicas(s.nodes - missing, devices_per_node, p);
    if (left < std::max<std::int64_t>(1, spec.min_replicas)) break;
    table.push_back(static_cast<double>(left) / static_cast<double>(p.dp));
  }
  return table;
}

/// Collects all missing inputs, to report them in one error.
class Needs {
 public:
  double get(std::optional<double> value, const std::string& what) {
    if (!value) missing_ += (missing_.empty() ? "" : "\n") + what;
    return value.value_or(0);
  }
  double key(double value, const std::string& key, const std::string& meaning) {
    return get(value < 0 ? std::nullopt : std::optional(value),
               "cluster.failures." + key + ": is required: " + meaning +
                   "; give it in the cluster file or with --set");
  }
  void require(bool holds, const std::string& what) {
    if (!holds) get(std::nullopt, what);
  }
  void throw_if_any() const {
    if (!missing_.empty()) throw base::spec_error(missing_);
  }

 private:
  std::string missing_;
};

CheckpointTier memory_tier(const char* name, FailureScope survives, const spec::FailureSpec::Memory& m,
                           Needs& needs) {
  return {.name = name,
          .survives = survives,
          .save_seconds = m.save_seconds,
          .write_seconds = m.write_seconds,
          .restore_seconds =
              needs.key(m.restore_seconds, std::string(name) + ".restore_seconds", "from that copy"),
          .every_steps = m.every_steps};
}

/// Steps between two saves to storage; 0: the optimum. A duration is rounded to the nearest multiple of the
/// interval given for copies in memory. (The partner's interval is a multiple of the own node's.)
std::int64_t storage_steps(const io::Interval& every, const spec::FailureSpec& spec,
                           const RunFigures& figures) {
  if (every.seconds == 0 || figures.step_seconds.value_or(0) <= 0) return every.steps;
  std::int64_t multiple = 1;
  for (const spec::FailureSpec::Memory& memory : {spec.memory, spec.partner})
    if (memory.save_seconds >= 0 && memory.every_steps > 0) multiple = std::max(multiple, memory.every_steps);
  const double steps = std::round(every.seconds / *figures.step_seconds / static_cast<double>(multiple));
  return static_cast<std::int64_t>(
             std::clamp(steps, 1.0, static_cast<double>(kMaxScenarioSteps / multiple))) *
         multiple;
}

CheckpointTier storage_tier(const job::JobSpec& job, const spec::FailureSpec& spec, const RunFigures& figures,
                            Needs& needs) {
  CheckpointTier tier{.name = "storage",
                      .survives = FailureScope::several,
                      .every_steps = storage_steps(job.checkpoint.every, spec, figures)};
  std::optional<double> write_seconds;
  if (figures.checkpoint_bytes && spec.storage_gb_per_second > 0)
    write_seconds = *figures.checkpoint_bytes / (spec.storage_gb_per_second * 1e9);
  const std::string way =
      "--checkpoint-bytes and cluster.failures.storage.gb_per_second: are required, for the time that "
      "storage takes to ";
  if (job.checkpoint.async) {
    tier.save_seconds =
        needs.get(figures.save_seconds,
                  "--save-seconds: is required with checkpoint.async: true: the checkpoint stall of its "
                  "snapshot");
    tier.write_seconds = needs.get(write_seconds, way + "write a checkpoint");
  } else {
    const auto save = figures.save_seconds ? figures.save_seconds : write_seconds;
    tier.save_seconds = needs.get(save, way + "write a checkpoint; or give --save-seconds");
  }
  tier.restore_seconds = spec.storage_restore_seconds;
  if (tier.restore_seconds < 0)
    tier.restore_seconds =
        needs.get(write_seconds, way + "read a checkpoint; or set cluster.failures.storage.restore_seconds");
  return tier;
}

}  // namespace

spec::FailureSpec job_failures(const job::JobSpec& job, const std::vector<std::string>& overrides) {
  spec::Problems problems;
  const int source = problems.add_source("cluster.preset", spec::Problems::SourceKind::argument);
  const auto spec = spec::read_cluster_failures(job.cluster.preset, {source, 1, 1}, overrides, problems);
  problems.throw_if_any();
  base::check(spec.has_value(), "failures that cannot be read have a problem");
  // Without overrides the scenario does what the run itself does.
  const auto given = [&](const std::string& key) {
    return std::any_of(overrides.begin(), overrides.end(),
                       [&](const std::string& o) { return o.starts_with("cluster.failures." + key + "="); });
  };
  spec::FailureSpec failures = *spec;
  if (job.cluster.spares > 0 && !given("spares")) failures.spares = job.cluster.spares;
  if (job.cluster.elastic && !given("elastic")) {
    failures.elastic = true;
    if (!given("elastic.replan")) failures.replan = job.cluster.replan;
    if (!given("min_replicas")) failures.min_replicas = job.cluster.min_replicas;
  }
  return failures;
}

FailureScenario failure_scenario(const job::JobSpec& job, const spec::FailureSpec& spec,
                                 const RunFigures& figures) {
  const std::int64_t ranks = parallel::make_grids(job.parallel).dense.ranks(), dp = job.parallel.dp;
  const std::int64_t devices = spec::job_topology(job).devices_per_node;
  Needs needs;
  FailureScenario s;
  s.nodes = (ranks + devices - 1) / devices;
  const auto of_node = [](double per_1000_days) { return per_1000_days / (1000 * kSecondsPerDay); };
  const double node_devices = static_cast<double>(devices);
  s.kinds = {{"gpu", FailureScope::node, of_node(spec.gpu) * node_devices},
             {"gpu_memory", FailureScope::node, of_node(spec.gpu_memory) * node_devices},
             {"host", FailureScope::node, of_node(spec.host)},
             {"network", FailureScope::several, of_node(spec.network)},
             {"software", FailureScope::process, of_node(spec.software)}};
  std::erase_if(s.kinds, [](const FailureKind& kind) { return kind.per_node_second == 0; });
  needs.require(!s.kinds.empty() || spec.planned > 0,
                "cluster.failures: " + job.cluster.preset +
                    " has no rates: give one, for example --set cluster.failures.host_per_1000_node_days=4");
  s.planned_per_second = of_node(spec.planned) * static_cast<double>(s.nodes);
  s.planned_seconds = spec.planned_seconds;
  s.step_seconds = needs.get(figures.step_seconds,
                             "--step-seconds: is required: the time of one step; or add --calibrate, or name "
                             "a cluster with operator rates");
  s.detection_seconds = needs.key(spec.detection_seconds, "detection_seconds", "until a failure is acted on");
  s.restart_seconds =
      needs.key(spec.restart_seconds, "restart_seconds", "processes and communicators, up to the restore");
  s.spares = spec.spares;
  s.replace_seconds = spec.replace_hours * 3600;
  needs.require(spec.min_replicas <= dp,
                "cluster.failures.min_replicas: " + std::to_string(spec.min_replicas) +
                    " are more than the job's dp (nearest valid: " + std::to_string(dp) + ")");
  s.speed_by_missing = speeds(spec, s, devices, job.parallel);
  if (spec.memory.save_seconds >= 0)
    s.tiers.push_back(memory_tier("memory", FailureScope::process, spec.memory, needs));
  if (spec.partner.save_seconds >= 0)
    s.tiers.push_back(memory_tier("partner", FailureScope::node, spec.partner, needs));
  s.tiers.push_back(storage_tier(job, spec, figures, needs));
  needs.throw_if_any();
  check_scenario(s);
  return s;
}

}  // namespace trainerd::core::plan
