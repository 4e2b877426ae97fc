#include "core/spec/machines.h"

#include "core/spec/cluster.h"
#include "core/spec/spec.h"
#include "kernels/backend/cuda_plugin.h"
#include "kernels/base/error.h"
#include "kernels/nvml/nvml.h"
#include "parallel/layout/schedule_shape.h"

namespace trainerd::core::spec {

parallel::Topology named_cluster(const std::string& name, const std::string& asked_by) {
  Problems problems;
  const int source = problems.add_source(asked_by, Problems::SourceKind::argument);
  const auto topology = read_cluster(name, {source, 1, 1}, problems);
  problems.throw_if_any();
  base::check(topology.has_value(), "a cluster that cannot be read has a problem");
  return *topology;
}

Machine this_machine(const std::string& nvml) {
  Machine machine;
  machine.cores = kernels::detect_cpu().threads;
  const int gpus = kernels::count_gpus(nvml);
  if (gpus == 0) return machine;
  try {
    machine.cuda_devices = kernels::open_cuda_plugin().device_count();
  } catch (const base::DeviceError& error) {
    machine.no_cuda = "this machine has " + std::to_string(gpus) + (gpus == 1 ? " GPU" : " GPUs") +
                      " that cannot be used: " + error.what();
  }
  return machine;
}

namespace {

parallel::Topology cuda_topology(std::int64_t ranks, parallel::Devices devices, Absent absent) {
  try {
    return parallel::detect_cuda_topology(ranks, devices);
  } catch (const base::DeviceError&) {
    if (absent == Absent::refused) throw;
  }
  parallel::Topology assumed;
  assumed.devices_per_node = ranks;
  assumed.device = kernels::cuda_target();
  assumed.device.name = "CUDA device, of which this machine has none";
  return assumed;
}

}  // namespace

parallel::Topology job_topology(const job::JobSpec& job, Absent absent) {
  if (job.cluster.preset == "local") {
    const std::int64_t ranks = parallel::make_grids(job.parallel).dense.ranks();
    if (job.device == job::DeviceChoice::cuda) {
      parallel::Topology cuda =
          cuda_topology(ranks / job.cluster.nodes,
                        job::uses_staged(job) ? parallel::Devices::shared : parallel::Devices::own, absent);
      cuda.nodes = job.cluster.nodes;
      return cuda;
    }
    parallel::Topology local = parallel::detect_topology(static_cast<int>(job.threads),
                                                         ranks / job.cluster.nodes, job::most_isa(job));
    if (job.isa != job::IsaChoice::automatic && local.device.isa != job::most_isa(job))
      throw base::device_error(std::string("isa: the job asks for ") + to_string(job::most_isa(job)) +
                               ", and this CPU, as oneDNN may use it, has " + to_string(local.device.isa) +
                               ": set isa: auto");
    local.nodes = job.cluster.nodes;
    return local;
  }
  parallel::Topology result = named_cluster(job.cluster.preset, "cluster.preset");
  if (result.device.kind == kernels::DeviceKind::cpu) {
    if (job.device == job::DeviceChoice::cuda)
      throw base::spec_error("device: the job is for GPUs and cluster.preset (" + job.cluster.preset +
                             ") is of processors: set device: cpu");
    if (job.threads != 0 && job.threads != result.device.threads)
      throw base::spec_error(
          "threads: the ranks of " + job.cluster.preset + " have " + std::to_string(result.device.threads) +
          " (nearest valid: " + std::to_string(result.device.threads) + "); `trainerd calibrate --threads " +
          std::to_string(job.threads) + "` measures others");
  }
  result.nodes = job.cluster.nodes;
  return result;
}

parallel::PlacedGrid place_job(const job::JobSpec& job, Absent absent) {
  const parallel::GridViews grids = parallel::make_grids(job.parallel);
  parallel::PlacedGrid placed(grids.dense, job_topology(job, absent));
  placed.expert_grid = grids.expert;
  placed.ring = parallel::schedule_shape(job.parallel, 1).ring();
  return placed;
}

parallel::Topology with_rates(const parallel::Topology& here, const parallel::Topology& cluster) {
  if (here.device.kind != cluster.device.kind)
    throw base::spec_error("--rates: " + cluster.name + " is a cluster of " + cluster.device.name +
                           ", and this job runs on " + here.device.name);
  parallel::Topology rated = cluster;
  rated.name = here.name;
  rated.nodes = here.nodes, rated.devices_per_node = here.devices_per_node;
  // A machine's own links are not detected; the cluster's description defines them.
  if (here.device.kind == kernels::DeviceKind::cpu || here.nvlink_domain > 0)
    rated.nvlink_domain = here.nvlink_domain;
  if (here.device.kind == kernels::DeviceKind::cpu || here.rails > 0) rated.rails = here.rails;
  rated.device = here.device;
  rated.device_memory_bytes = here.device_memory_bytes, rated.node_memory_bytes = here.node_memory_bytes;
  rated.device_overhead_bytes = here.device_overhead_bytes;
  return rated;
}

JobHere job_here(const job::JobSpec& job) {
  if (job.cluster.preset == "local") return {job, std::nullopt};
  const parallel::Topology named = job_topology(job);
  const std::int64_t ranks = parallel::make_grids(job.parallel).dense.ranks(),
                     of_a_node = (ranks + job.cluster.nodes - 1) / job.cluster.nodes;
  if (ranks > named.devices())
    throw base::capacity_error("cluster.preset: the job asks for " + std::to_string(ranks) + " ranks and " +
                               named.name + " has " + std::to_string(named.devices()) +
                               " devices: set cluster.nodes, or fewer ranks");
  const bool cpu = named.device.kind == kernels::DeviceKind::cpu;
  JobHere here{job, std::nullopt};
  here.job.cluster.preset = "local";
  if (!cpu && job.device == job::DeviceChoice::automatic && this_machine().cuda_devices > 0)
    here.job.device = job::DeviceChoice::cuda;
  if (cpu) here.job.threads = named.device.threads;
  std::string found;
  if (cpu && of_a_node * named.device.threads > kernels::detect_cpu().threads) {
    found =
        std::to_string(kernels::detect_cpu().threads) + " cores for " + std::to_string(of_a_node) + " ranks";
  } else if (cpu || here.job.device == job::DeviceChoice::cuda) {
    try {
      const std::string name = job_topology(here.job).device.name;
      if (name != named.device.name) {
        found = "none of these devices, but " + name;
      } else {
        // Applies the checks of a local job.
        here.job = parse_job(to_yaml(here.job), "the job on this machine");
        if (named.rates.known() || named.measured.known()) here.rates = named;
        return here;
      }
    } catch (const base::DeviceError& none) {
      found = std::string("none of these devices (") + none.what() + ")";
    }
  } else {
    found = "none of these devices, or device: cuda is not set";
  }
  throw base::capacity_error(
      "cluster.preset: the job is for " + named.name + " (" + std::to_string(named.devices()) + " x " +
      named.device.name + "), and this machine has " + found +
      ": set cluster.preset: local to run here, or look at the job with `trainerd validate`");
}

}  // namespace trainerd::core::spec
