#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "apps/commands.h"
#include "apps/commit.h"
#include "core/run/log.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "core/supervise/agent.h"
#include "io/listen_address.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::apps {
namespace {

constexpr int kExitOfSignal = 128;  // as a shell reports a process that a signal ended

/// SIGTERM and SIGINT as a descriptor: blocked here, before any thread is made, so that every thread blocks them.
base::UniqueFd open_stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // A reader of our output that goes away is no reason to end training, and a file-size limit is an error like a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  base::UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC));
  if (!fd) throw base::device_error("cannot listen for signals: " + base::errno_text(errno));
  return fd;
}

/// Connections of every rank end at node 0, and the usual limit is 1024; workers inherit this one for theirs.
void allow_many_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int run_command(const RunArgs& args) {
  const base::UniqueFd signals = open_stop_signals();
  std::vector<std::string> overrides = args.overrides;
  if (args.nodes.nodes > 0) overrides.push_back("cluster.nodes=" + std::to_string(args.nodes.nodes));
  auto [job, rates] = core::job_here(core::load_job(args.job, overrides));
  if (!args.rates.empty()) rates = core::named_cluster(args.rates, "--rates");
  if (!args.metrics_listen.empty() && args.metrics_listen != "off" && !io::parse_listen_address(args.metrics_listen))
    throw base::spec_error("--metrics-listen: expected a numeric host:port or off, got '" + args.metrics_listen + "'");
  const auto gang = find_gang(args.nodes, job.cluster.nodes, process_environment);
  if (gang) allow_many_descriptors();
  const auto screen = std::make_shared<io::Screen>(STDOUT_FILENO, ::isatty(STDOUT_FILENO) == 1 ? io::Screen::Style::terminal : io::Screen::Style::plain);
  const auto log = std::make_shared<io::RunLog>();
  core::log_to(screen, log);
  // The log keeps the screen: its end is not that of its owners.
  struct Finish {
    io::Screen& screen;
    ~Finish() { screen.finish(); }
  } const finish{*screen};
  const core::AgentResult result = core::run_agent({.job = job,
                                                    // Through /proc, so that a binary that is replaced while it runs still starts workers of its own kind.
                                                    .executable = "/proc/self/exe",
                                                    .signal_fd = signals.get(),
                                                    .screen = screen,
                                                    .log = log,
                                                    .command = args.command,
                                                    .commit = commit(),
                                                    .gang = gang,
                                                    .rates = rates,
                                                    .metrics_listen = args.metrics_listen});
  return result.stop_signal == 0 ? 0 : kExitOfSignal + result.stop_signal;
}

}  // namespace trainerd::apps
