#include "core/run/agent/agent.h"

#include <exception>

#include "core/run/agent/elastic.h"
#include "core/run/agent/run.h"
#include "core/run/stop/early_stop.h"
#include "kernels/base/error.h"
#include "kernels/cpu/cpu_backend.h"

namespace trainerd::core::run {

namespace {

/// The job of this size, as this machine trains it.
AgentOptions options_here(const AgentOptions& options, const job::JobSpec& job,
                          const Membership& membership) {
  AgentOptions here = options;
  here.job = job;
  // Of the job that workers get: where a node has less, it limits the others.
  if (membership.job_nodes() > 1 && options.job.device != job::DeviceChoice::cuda &&
      membership.isa() < kernels::detect_cpu(1, job::most_isa(options.job)).isa)
    here.job.isa = job::choice_of(membership.isa());
  return here;
}

}  // namespace

AgentResult run_agent(const AgentOptions& options) {
  std::optional<Membership> membership;
  if (options.membership) membership.emplace(*options.membership, options.job, options.signal_fd);
  else membership.emplace();
  if (membership->over()) return {0, membership->end()->stop_signal};
  try {
    RunSeries series{.whole = options.job, .restarts = RestartBudget(options.job.restarts)};
    for (bool first = true;; first = false) {
      const auto job = job_on(options.job, membership->nodes());
      base::check(job.has_value(), "the leader chooses a size that the job has");
      AgentOptions here = options_here(options, *job, *membership);
      here.fresh = options.fresh && first;
      // The other nodes leave when this one says so; a signal to one of them is passed on when it has
      // planned.
      std::optional<EarlyStop> early;
      if (membership->leads())
        early.emplace(options.signal_fd, [&](const StopRequest& stop) {
          membership->finish({.stop_signal = stop.exit_signal});
          options.leave(stop);
        });
      Run run(here, *membership, series);
      run.prepare();
      early.reset();
      const AgentResult result = run.run();
      if (!run.resizes()) {
        membership->finish({.stop_signal = result.stop_signal});
        return result;
      }
      if (!membership->leads()) membership->await_resize(options.signal_fd);
      if (membership->over()) return {0, membership->end()->stop_signal};
    }
  } catch (const std::exception& error) {
    membership->finish(end_by(error));
    options.log->add("error", error.what());
    options.log->finish();
    throw;
  }
}

}  // namespace trainerd::core::run
