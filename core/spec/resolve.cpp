#include "core/spec/resolve.h"

#include <algorithm>
#include <optional>

#include "core/spec/cluster.h"

namespace trainerd::core::spec {
namespace {

using std::to_string;

bool is_device_of_machine(const job::JobSpec& job) {
  return job.device == job::DeviceChoice::automatic && job.cluster.preset == "local";
}

class Resolver {
 public:
  Resolver(job::JobSpec& job, const Places& places, const Surroundings& around, Problems& problems)
      : job_(job), places_(places), around_(around), problems_(problems) {}

  void run() {
    choose_nodes();
    const bool automatic = is_device_of_machine(job_) && around_.machine != nullptr;
    if (automatic) choose_device();
    if (job_.parallel.dp == parallel::kAutomatic) choose_dp();
    if (automatic && job_.device == job::DeviceChoice::cuda) check_devices();
  }

 private:
  const Machine& machine() {
    if (!machine_) machine_ = around_.machine();
    return *machine_;
  }
  void problem(const std::string& path, const std::string& what) {
    const auto place = places_.find(path);
    problems_.add(place == places_.end() ? Place{} : place->second, path, what);
  }

  void choose_nodes() {
    if (around_.nodes == nullptr || job_.cluster.preset != "local" || places_.contains("cluster.nodes"))
      return;
    const auto nodes = around_.nodes();
    const std::int64_t spares = job_.cluster.spares;
    if (!nodes || *nodes <= spares || *nodes - spares == job_.cluster.nodes) return;
    job_.cluster.nodes = *nodes - spares;
    if (around_.remark)
      around_.remark("cluster.nodes is " + to_string(job_.cluster.nodes) +
                     ", the nodes that the scheduler gave the job" +
                     (spares > 0 ? " but for cluster.failures.spares" : ""));
  }

  void choose_device() {
    job_.device = machine().cuda_devices > 0 ? job::DeviceChoice::cuda : job::DeviceChoice::cpu;
    if (!machine().no_cuda.empty() && around_.remark)
      around_.remark("device: auto is the CPU: " + machine().no_cuda +
                     "; device: cpu or device: cuda ends this line");
  }

  void choose_dp() {
    job_.parallel.dp = 1;
    if (const auto trained = kept()) {
      job_.parallel.dp = *trained;
      return;
    }
    const auto devices = devices_of_node();
    const parallel::ParallelOptions& p = job_.parallel;
    if (!devices ||
        std::min({p.tp, p.cp, p.pp, p.ep, p.expert_tp(), job_.batch.global, job_.batch.micro}) < 1)
      return;
    // The largest dp without padding whose ranks share the experts evenly, or the least of the latter.
    parallel::ParallelOptions one = p;
    one.dp = 1;
    const std::int64_t most = *devices * job_.cluster.nodes / one.ranks(),
                       groups = std::ranges::min(job_.batch.sizes()) / job_.batch.micro;
    const std::int64_t unit = p.dp_multiple();
    job_.parallel.dp = unit;
    for (std::int64_t dp = std::min(most, groups) / unit * unit; dp > unit; dp -= unit) {
      if (job_.batch.global % (job_.batch.micro * dp) != 0) continue;
      job_.parallel.dp = dp;
      break;
    }
  }

  /// A run continues bit for bit only on the layout of its checkpoint.
  std::optional<std::int64_t> kept() const {
    if (!around_.trained_dp) return std::nullopt;
    job::JobSpec job = job_;
    if (job.output.empty()) job.output = "runs/" + job.name;
    return around_.trained_dp(job);
  }

  std::optional<std::int64_t> devices_of_node() {
    if (job_.cluster.preset != "local") {
      Problems of_file;  // the later checks report these
      const int source = of_file.add_source("cluster.preset", Problems::SourceKind::argument);
      const auto cluster = read_cluster(job_.cluster.preset, {source, 1, 1}, of_file);
      return cluster ? std::optional(cluster->devices_per_node) : std::nullopt;
    }
    if (!around_.machine) {
      problem("parallel.dp",
              "auto is for a command on the machine that trains: give a number (nearest valid: 1)");
      return std::nullopt;
    }
    if (job_.device == job::DeviceChoice::cuda) return std::max<std::int64_t>(1, machine().cuda_devices);
    if (job_.threads == 0) {
      problem("parallel.dp",
              "auto divides the " + to_string(machine().cores) +
                  " cores by `threads`, and threads is 0: set threads, or a number (nearest valid: 1)");
      return std::nullopt;
    }
    return std::max<std::int64_t>(1, machine().cores / job_.threads);
  }

  void check_devices() {
    const parallel::ParallelOptions& p = job_.parallel;
    if (std::min({p.tp, p.cp, p.pp, p.dp}) < 1 ||
        job_.cluster.communication == parallel::Communication::staged)
      return;
    const std::int64_t ranks = p.ranks() / std::max<std::int64_t>(1, job_.cluster.nodes),
                       devices = machine().cuda_devices;
    if (ranks > devices)
      problem("device", "auto takes the CUDA devices of this machine, " + to_string(devices) +
                            ", and the job has " + to_string(ranks) +
                            " ranks on it: set device: cpu to compute on its processor, make the axes of "
                            "`parallel` smaller, or set "
                            "cluster.communication to staged");
  }

  job::JobSpec& job_;
  const Places& places_;
  const Surroundings& around_;
  Problems& problems_;
  std::optional<Machine> machine_;
};

}  // namespace

bool asks_for_machine(const job::JobSpec& job) {
  return is_device_of_machine(job) ||
         (job.parallel.dp == parallel::kAutomatic && job.cluster.preset == "local");
}

void resolve_automatic(job::JobSpec& job, const Places& places, const Surroundings& around,
                       Problems& problems) {
  Resolver(job, places, around, problems).run();
}

}  // namespace trainerd::core::spec
