#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/descriptors.h"
#include "apps/exit_codes.h"
#include "apps/job_file.h"
#include "apps/signals.h"
#include "core/job/job.h"
#include "core/run/agent/agent.h"
#include "core/run/log/log.h"
#include "core/run/stop/early_stop.h"
#include "core/run/stop/limit_alarm.h"
#include "core/slurm/commands.h"
#include "core/spec/machines.h"
#include "io/http/listen_address.h"
#include "io/text/text.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"
#include "kernels/base/socket.h"

namespace trainerd::apps {
namespace {

/// Monotonic seconds at which `--max-time` ends; none without it.
std::optional<double> deadline(const std::optional<std::string>& max_time, double start) {
  if (!max_time) return std::nullopt;
  const auto seconds = io::parse_duration(*max_time);
  if (!seconds || *seconds <= 0)
    throw base::spec_error("--max-time: expected a duration such as 3h50m, 90m or 30s, got '" + *max_time +
                           "'");
  return start + *seconds;
}

/// Ends the process when there is nothing to save; `screen` shows the log.
core::run::LeaveProcess leave_with(std::shared_ptr<io::Screen> screen) {
  return [screen = std::move(screen)](const core::run::StopRequest& stop) {
    core::run::log::info("{} before training began: stopping", stop.reason);
    core::run::log::flush();
    screen->finish();
    // _Exit runs no destructors, because other threads are still running.
    std::_Exit(kExitOfSignal + stop.exit_signal);
  };
}

std::string fresh_command(const RunArgs& args) {
  std::string text = "trainerd run " + shell_word(args.job) + " --fresh";
  for (const std::string& value : args.overrides) text += " --set " + shell_word(value);
  return text;
}

core::run::Invocation invocation(const RunArgs& args) {
  core::run::Invocation call{.arguments = args.words, .job_file = args.job};
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string variable = *at;
    const std::size_t equals = variable.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = variable.substr(0, equals);
    if (core::run::may_record(name)) call.environment[name] = variable.substr(equals + 1);
  }
  const auto value = [](const char* name) { return process_environment(name).value_or(""); };
  call.credentials = {.token = value("MLFLOW_TRACKING_TOKEN"),
                      .user = value("MLFLOW_TRACKING_USERNAME"),
                      .password = value("MLFLOW_TRACKING_PASSWORD")};
  return call;
}

/// True if --nodes is the job's number of nodes plus some of its spares.
bool counts_spares(const RunArgs& args) {
  try {
    core::spec::Surroundings around = surroundings_here();
    around.remark = {};
    const core::job::JobSpec job = read_job(args.job, args.overrides, std::move(around));
    return job.cluster.nodes < args.nodes.nodes && args.nodes.nodes <= job.cluster.nodes + job.cluster.spares;
  } catch (const base::SpecError&) {  // without --nodes the job is invalid
    return false;
  }
}

}  // namespace

int run_command(const RunArgs& args) {
  const std::optional<double> end = deadline(args.max_time, base::monotonic_seconds());
  const base::UniqueFd signals = open_stop_signals();
  core::run::arm_time_limit(end);
  const auto screen = std::make_shared<io::Screen>(
      STDOUT_FILENO, ::isatty(STDOUT_FILENO) == 1 ? io::Screen::Style::terminal : io::Screen::Style::plain);
  const auto log = std::make_shared<io::RunLog>();
  core::run::log::write_to(screen, log);
  // The log shares the screen, so its destructor may run late: finish it explicitly.
  struct Finish {
    io::Screen& screen;
    ~Finish() { screen.finish(); }
  } const finish{*screen};
  std::optional<core::run::EarlyStop> early(std::in_place, signals.get(), leave_with(screen));
  std::vector<std::string> overrides = args.overrides;
  if (args.nodes.nodes > 0 && !counts_spares(args))
    overrides.push_back("cluster.nodes=" + std::to_string(args.nodes.nodes));
  core::spec::Surroundings around = surroundings_here();
  if (args.fresh) around.trained_dp = {};  // the run starts from step 1
  if (args.nodes.node < 0) around.nodes = [] { return slurm_step_nodes(process_environment); };
  auto [job, rates] = core::spec::job_here(read_job(args.job, overrides, std::move(around)));
  if (!args.rates.empty()) rates = core::spec::named_cluster(args.rates, "--rates");
  if (!args.metrics_listen.empty() && args.metrics_listen != "off" &&
      !io::parse_listen_address(args.metrics_listen))
    throw base::spec_error("--metrics-listen: expected a numeric host:port or off, got '" +
                           args.metrics_listen + "'");
  const auto membership =
      find_membership(args.nodes, job.cluster.nodes, job.cluster.spares, process_environment,
                      core::slurm::slurm_node_address, job.supervise.coordinator);
  // An interface that is not there fails here, before other nodes are waited for.
  if (membership && !membership->interface.empty()) base::own_address(membership->interface);
  const std::int64_t ranks = parallel::make_grids(job.parallel).dense.ranks();
  allow_descriptors((ranks + job.cluster.nodes - 1) / job.cluster.nodes, ranks);
  early.reset();
  const core::run::AgentResult result = core::run::run_agent(
      {.job = job,
       // Through /proc: if the binary is replaced during the run, workers still run the old one.
       .executable = "/proc/self/exe",
       .signal_fd = signals.get(),
       .leave = leave_with(screen),
       .screen = screen,
       .log = log,
       .command = args.command,
       .membership = membership,
       .rates = rates,
       .deadline = end,
       .stop_after = args.stop_after > 0 ? std::optional(args.stop_after) : std::nullopt,
       .fresh = args.fresh,
       .fresh_command = fresh_command(args),
       .metrics_listen = args.metrics_listen,
       .invocation = invocation(args),
       .find_s3 = [] { return io::s3_settings(process_environment); }});
  return result.stop_signal == 0 ? 0 : kExitOfSignal + result.stop_signal;
}

}  // namespace trainerd::apps
