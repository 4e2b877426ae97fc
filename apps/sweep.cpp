#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/exit_codes.h"
#include "apps/job_file.h"
#include "apps/nodes.h"
#include "apps/output.h"
#include "apps/signals.h"
#include "core/run/stop/early_stop.h"
#include "core/slurm/commands.h"
#include "core/spec/machines.h"
#include "core/sweep/local_runner.h"
#include "core/sweep/run_sweep.h"
#include "core/sweep/slurm_runner.h"
#include "core/sweep/verdict.h"
#include "io/console/screen.h"
#include "kernels/base/error.h"

namespace trainerd::apps {
namespace {

/// The CUDA devices of this process, by their names in CUDA_VISIBLE_DEVICES.
std::vector<std::string> cuda_devices(std::int64_t count) {
  std::vector<std::string> names;
  std::string given = process_environment("CUDA_VISIBLE_DEVICES").value_or("");
  for (std::size_t begin = 0; begin < given.size();) {
    const std::size_t end = std::min(given.find(',', begin), given.size());
    names.push_back(given.substr(begin, end - begin));
    begin = end + 1;
  }
  for (auto i = static_cast<std::int64_t>(names.size()); i < count; ++i) names.push_back(std::to_string(i));
  names.resize(static_cast<std::size_t>(count));
  return names;
}

/// The minimum that every Slurm node has; with --dry, this machine if Slurm is not available.
core::spec::Machine slurm_machine(const SweepArgs& args) {
  try {
    const core::slurm::SlurmNodes nodes = core::slurm::slurm_nodes("");
    return {.cores = nodes.cpus, .cuda_devices = nodes.gpus};
  } catch (const base::SpecError& e) {
    if (args.dry) return this_machine_for_slurm(e);
    throw base::spec_error(
        "device: auto and dp: auto are by what Slurm's nodes have; set device and parallel.dp in the base, "
        "or "
        "let Slurm be asked: " +
        std::string(e.what()));
  }
}

int status_of(const core::sweep::SweepEnd& end) {
  if (end.stop) return kExitOfSignal + end.stop->exit_signal;
  return end.failed_status;
}

}  // namespace

int sweep_command(const SweepArgs& args) {
  const base::UniqueFd signals = open_stop_signals();
  // While jobs are planned a stop signal just ends this process.
  std::optional<core::run::EarlyStop> early(
      std::in_place, signals.get(),
      [](const core::run::StopRequest& stop) { std::_Exit(kExitOfSignal + stop.exit_signal); });
  core::sweep::Sweep sweep = core::sweep::read_sweep(
      args.sweep, {args.overrides, args.output, [&args] { return slurm_machine(args); }},
      surroundings_here());
  const std::int64_t devices = core::spec::this_machine().cuda_devices;
  core::sweep::plan_jobs(sweep, devices);
  const bool all_refused = std::all_of(sweep.jobs.begin(), sweep.jobs.end(),
                                       [](const core::sweep::SweepJob& job) { return !job.refused.empty(); });
  const int refused = all_refused ? exit_code(base::ErrorKind::capacity) : kExitDone;
  if (args.dry) {
    print(core::sweep::dry_table(sweep));
    return refused;
  }
  const core::sweep::SweepDirectory directory(sweep);
  directory.write_jobs(sweep);
  early.reset();
  const auto screen = std::make_shared<io::Screen>(
      STDOUT_FILENO, ::isatty(STDOUT_FILENO) == 1 ? io::Screen::Style::terminal : io::Screen::Style::plain);
  const core::sweep::SayLine say = [screen](const std::string& line) { screen->line(line); };
  std::unique_ptr<core::sweep::JobRunner> runner;
  if (sweep.where == core::sweep::SweepPlace::slurm)
    runner = std::make_unique<core::sweep::SlurmRunner>(
        sweep, core::sweep::SlurmRunner::Options{
                   .executable = std::filesystem::read_symlink("/proc/self/exe").string(),
                   .signal_fd = signals.get(),
                   .say = say});
  else
    runner = std::make_unique<core::sweep::LocalRunner>(
        sweep, core::sweep::LocalRunner::Options{.executable = "/proc/self/exe",
                                                 .signal_fd = signals.get(),
                                                 .cuda_devices = cuda_devices(devices),
                                                 .say = say});
  const core::sweep::SweepEnd end = core::sweep::run_sweep(sweep, *runner, say);
  screen->finish();
  print("\n" + core::sweep::results_table(sweep, end.results) + "results: " + sweep.results() + ", " +
        sweep.page() + "\n");
  if (end.stop) print("stopped by " + end.stop->reason + "; the same command goes on\n");
  return end.stop || refused == kExitDone ? status_of(end) : refused;
}

}  // namespace trainerd::apps
