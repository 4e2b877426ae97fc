#include "core/sweep/verdict.h"

#include <fmt/format.h>

#include <new>
#include <stdexcept>

#include "core/plan/predict/plan.h"
#include "core/spec/machines.h"
#include "core/sweep/table.h"
#include "io/text/text.h"
#include "kernels/base/error.h"

namespace trainerd::core::sweep {
namespace {

std::string share_text(std::int64_t at_once) {
  return at_once == 1 ? "" : fmt::format(" (a {}th of the node's, for at_once: {})", at_once, at_once);
}

/// Why a local sweep's job cannot run next to the others; empty if it has the devices.
std::string lacks_devices(const job::JobSpec& job, std::int64_t at_once, std::int64_t cuda_devices) {
  if (job.cluster.nodes > 1)
    return fmt::format("cluster.nodes: {}: where: local runs each job on this machine alone",
                       job.cluster.nodes);
  if (job.device != job::DeviceChoice::cuda || job::uses_staged(job)) return "";
  const std::int64_t ranks = parallel::make_grids(job.parallel).dense.ranks();
  if (ranks * at_once <= cuda_devices) return "";
  return fmt::format(
      "{} ranks in each of {} jobs at once, and this machine has {} CUDA devices: set at_once to "
      "less, or the axes of `parallel` to fewer ranks",
      ranks, at_once, cuda_devices);
}

struct Planning {
  std::int64_t at_once = 1;
  bool local = true;
  std::int64_t cuda_devices = 0;
};

/// Why the planner refuses the job; empty: it does not. Fills in the planned figures.
std::string verdict_of(SweepJob& job, const Planning& how) {
  job::JobSpec spec = job.spec;
  std::optional<parallel::Topology> rates;
  if (how.local) {
    if (const std::string lacking = lacks_devices(spec, how.at_once, how.cuda_devices); !lacking.empty())
      return lacking;
    spec::JobHere here = spec::job_here(spec);
    spec = std::move(here.job), rates = std::move(here.rates);
  }
  parallel::Topology topology =
      spec::job_topology(spec, how.local ? spec::Absent::refused : spec::Absent::assumed);
  if (rates) topology = spec::with_rates(topology, *rates);
  if (!how.local && spec.device == job::DeviceChoice::cuda && spec.cluster.preset == "local" &&
      how.cuda_devices == 0)
    return "cluster.preset: local is this machine, which has no GPU to plan for: name the cluster that "
           "Slurm's nodes are";
  if (how.local) topology.node_memory_bytes /= how.at_once;
  const plan::Plan plan = plan::make_plan(spec, topology);
  job.node_bytes = plan.fit.node_bytes;
  if (plan.timed) job.step_seconds = plan.time.step_seconds;
  if (plan.fits) return "";
  if (!plan.fit.on_device)
    return fmt::format("does not fit: a device needs {} and has {}", io::short_bytes(plan.fit.device_bytes),
                       io::short_bytes(topology.device_memory_bytes));
  return fmt::format("does not fit: the job needs {} of the node's memory and has {}{}",
                     io::short_bytes(plan.fit.node_bytes), io::short_bytes(topology.node_memory_bytes),
                     how.local ? share_text(how.at_once) : "");
}

}  // namespace

void plan_jobs(Sweep& sweep, std::int64_t cuda_devices) {
  const Planning how{sweep.where == SweepPlace::local ? sweep.at_once : 1, sweep.where == SweepPlace::local,
                     cuda_devices};
  for (SweepJob& job : sweep.jobs) {
    if (!job.refused.empty()) continue;
    try {
      job.refused = verdict_of(job, how);
    } catch (const base::Error& error) {
      job.refused = error.what();
    } catch (const std::bad_alloc&) {
      job.refused = "does not fit: planning it takes more memory than this host has";
    } catch (const std::length_error&) {
      job.refused = "does not fit: planning it takes more memory than this host has";
    }
  }
}

std::string dry_table(const Sweep& sweep) {
  std::vector<std::vector<std::string>> rows;
  const std::vector<std::string> keys = keys_of(sweep);
  std::vector<std::string> head{"job"};
  head.insert(head.end(), keys.begin(), keys.end());
  head.emplace_back("plan");
  rows.push_back(std::move(head));
  for (const SweepJob& job : sweep.jobs) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(job.name);
    for (const std::string& key : keys) row.push_back(value_of(job, key));
    if (!job.refused.empty()) row.push_back("refused: " + first_line(job.refused));
    else
      row.push_back("fits: " + io::short_bytes(job.node_bytes) + " of a node" +
                    (job.step_seconds > 0 ? ", " + io::short_duration(job.step_seconds) + " per step" : ""));
  }
  return text_table(rows);
}

}  // namespace trainerd::core::sweep
