#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>

#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/job_file.h"
#include "apps/output.h"
#include "core/job/job.h"
#include "core/plan/predict/plan.h"
#include "core/plan/search/search.h"
#include "core/slurm/batch_script.h"
#include "core/slurm/commands.h"
#include "core/slurm/slurm_text.h"
#include "core/spec/machines.h"
#include "core/version/version.h"
#include "io/storage/storage.h"
#include "io/text/shell.h"
#include "io/text/text.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"

namespace trainerd::apps {
namespace {

namespace fs = std::filesystem;

/// A job as Slurm's nodes will see it.
struct SubmittedJob {
  core::job::JobSpec job;
  std::string unanswered = {};  ///< why it cannot be submitted: Slurm did not answer
};

/// `device: auto` and `dp: auto` are by what Slurm's nodes have, which is asked when the keys are right.
/// Where Slurm does not answer, the job is judged by this machine, so that what is wrong there and a plan
/// that does not fit are reported too.
SubmittedJob read_submitted(const SubmitArgs& args) {
  SubmittedJob submitted;
  core::spec::Surroundings around = surroundings_here();
  around.machine_asks_others = true;
  around.machine = [&] {
    try {
      const core::slurm::SlurmNodes nodes = core::slurm::slurm_nodes(args.partition);
      return core::spec::Machine{.cores = nodes.cpus, .cuda_devices = nodes.gpus};
    } catch (const base::SpecError& e) {
      if (args.dry) return this_machine_for_slurm(e);
      submitted.unanswered =
          "device: auto and dp: auto are by what Slurm's nodes have; set device and parallel.dp, "
          "or let Slurm be asked: " +
          std::string(e.what());
      return core::spec::this_machine();
    }
  };
  std::vector<std::string> overrides = args.overrides;
  if (args.nodes > 0) overrides.push_back("cluster.nodes=" + std::to_string(args.nodes));
  try {
    submitted.job = read_job(args.job, overrides, std::move(around));
  } catch (const base::SpecError& e) {
    if (submitted.unanswered.empty()) throw;
    throw base::spec_error(std::string(e.what()) + "\n" + submitted.unanswered);
  }
  return submitted;
}

/// The topology to plan for.
parallel::Topology submitted_machines(const core::job::JobSpec& job) {
  if (job.cluster.preset != "local") return core::spec::job_topology(job);
  if (job.device == core::job::DeviceChoice::cuda && core::spec::this_machine().cuda_devices == 0)
    throw base::spec_error(
        "cluster.preset: local is this machine, which has no GPU to plan for: name the cluster that Slurm's "
        "nodes are (dgx-h100, for example, or a file like those in configs/clusters/)");
  say("cluster.preset is local: planned as if Slurm's nodes were this machine; `trainerd calibrate --out "
      "FILE` "
      "on one of them makes the file of a cluster to name there");
  return core::spec::job_topology(job);
}

core::plan::Plan fitting_plan(const core::job::JobSpec& job, const parallel::Topology& machines) {
  core::plan::Plan plan = core::plan::make_plan(job, machines);
  plan.ramp = core::plan::ramp_plans(job, machines);
  if (plan.fits) return plan;
  plan.near = core::plan::near_changes(job, machines, core::plan::NoneFits::smallest);
  std::string text = core::plan::plan_summary(plan);
  while (text.ends_with('\n')) text.pop_back();
  throw base::capacity_error("the job is not submitted: " + text);
}

constexpr const char* kSaveBefore = "2m";  // the script's own, deploy/slurm/trainerd.sbatch

std::string seconds_before_limit(const std::string& text) {
  const auto seconds = io::parse_duration(text);
  // 65535 is Slurm's limit, a 16-bit number.
  if (!seconds || *seconds < 1 || *seconds > 65535)
    throw base::spec_error("--save-before: expected a duration from 1s to 18h such as 10m, got '" + text +
                           "'");
  return std::to_string(static_cast<std::int64_t>(std::ceil(*seconds)));
}

std::vector<core::slurm::SbatchOption> sbatch_options(const SubmitArgs& args) {
  std::vector<core::slurm::SbatchOption> options = core::slurm::parse_sbatch_options(args.sbatch);
  const auto add = [&](const char* name, const std::string& value) {
    if (value.find_first_of("\n\r") != std::string::npos)
      throw base::spec_error(std::string("--") + name + ": a value has one line");
    if (!value.empty()) options.push_back({name, value});
  };
  add("partition", args.partition);
  add("account", args.account);
  add("qos", args.qos);
  add("time", args.time);
  if (!args.save_before.empty()) add("signal", "B:TERM@" + seconds_before_limit(args.save_before));
  const std::string before = args.save_before.empty() ? kSaveBefore : args.save_before;
  const auto limit = core::slurm::read_time_limit(args.time);
  if (limit && *limit <= *io::parse_duration(before))
    throw base::spec_error(
        "--time " + args.time + " is no longer than the " + before +
        " before its end at which the job saves and stops: give it more time, or a shorter --save-before");
  return options;
}

std::vector<std::string> run_options(const SubmitArgs& args) {
  std::vector<std::string> words;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {name, value});
  };
  add("--rates", args.rates);
  add("--interface", args.interface);
  add("--metrics-listen", args.metrics_listen);
  add("--rendezvous-timeout", args.rendezvous_timeout);
  return words;
}

core::slurm::BatchScript head_of(const SubmitArgs& args, const core::plan::Plan& plan) {
  const core::slurm::NodeShare share =
      args.share ? core::slurm::NodeShare::part : core::slurm::NodeShare::whole;
  return {
      .name = plan.job.name,
      .resources = core::slurm::slurm_resources(plan.job, plan.topology, share),
      .directory = fs::current_path().string(),
      .log_directory = fs::absolute(io::local_path(plan.job.output)).lexically_normal().string() + "/slurm",
      .executable = fs::read_symlink("/proc/self/exe").string(),
      .notes = {"Made by: " + args.command,
                "trainerd " + core::version::release() + " (" + core::version::commit() + ")",
                core::plan::plan_summary(plan)},
      .run_options = run_options(args),
      .options = sbatch_options(args),
      .max_requeues = args.requeues};
}

/// A file with the script; removed unless it is kept.
class ScriptFile {
 public:
  ScriptFile(std::string path, const std::string& text) : path_(std::move(path)) {
    if (const int error = base::write_file_atomically(path_, std::as_bytes(std::span(text))); error != 0)
      throw base::spec_error("cannot write " + path_ + ": " + base::errno_text(error));
  }
  ~ScriptFile() { ::unlink(path_.c_str()); }
  ScriptFile(const ScriptFile&) = delete;
  ScriptFile& operator=(const ScriptFile&) = delete;

  const std::string& path() const { return path_; }
  /// Renames it in the same directory.
  void keep_as(const std::string& path) const {
    if (::rename(path_.c_str(), path.c_str()) != 0)
      say("the script could not be kept as " + path + ": " + base::errno_text(errno));
  }

 private:
  std::string path_;
};

std::string resources_text(const core::slurm::SlurmResources& r) {
  std::string text = std::to_string(r.nodes) + (r.nodes == 1 ? " node" : " nodes");
  const auto per_node = [&](std::int64_t n, const std::string& what) {
    if (n > 0) text += ", " + std::to_string(n) + " " + what + (n == 1 ? "" : "s") + " per node";
  };
  per_node(r.gpus, "GPU");
  per_node(r.cpus, "CPU");
  return text + (r.share == core::slurm::NodeShare::whole ? ", whole nodes" : "");
}

}  // namespace

int submit_command(const SubmitArgs& args) {
  const SubmittedJob submitted = read_submitted(args);
  const core::job::JobSpec& job = submitted.job;
  const core::plan::Plan plan = fitting_plan(job, submitted_machines(job));
  if (!submitted.unanswered.empty()) throw base::spec_error(submitted.unanswered);
  const core::slurm::BatchScript head = head_of(args, plan);
  const std::string text = core::slurm::batch_script(head, job);
  if (args.dry) {
    print(text);
    return kExitDone;
  }
  print(core::plan::plan_summary(plan));
  const std::string own = ".submit-" + std::to_string(::getpid());
  if (args.test_only) {
    const ScriptFile script((fs::temp_directory_path() / ("trainerd" + own)).string(), text);
    print(core::slurm::test_script(script.path()) + "\n");
    return kExitDone;
  }
  std::error_code error;
  fs::create_directories(head.log_directory, error);
  if (error)
    throw base::spec_error("the output directory cannot be written: " + head.log_directory + ": " +
                           error.message() + "; set `output` to one that can");
  const ScriptFile script(head.log_directory + "/" + own, text);
  const std::string number = core::slurm::submit_script(script.path());
  const std::string kept = head.log_directory + "/" + number + ".sbatch";
  script.keep_as(kept);
  print("submitted: job " + number + " on " + resources_text(head.resources) + "\n  state:  squeue --jobs=" +
        number + "\n  log:    tail -F " + io::shell_word(head.log_directory + "/" + number + ".out") +
        "\n  cancel: scancel " + number + "    (saves first)\n  script: " + io::shell_word(kept) + "\n");
  return kExitDone;
}

}  // namespace trainerd::apps
