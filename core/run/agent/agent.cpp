#include "core/run/agent/agent.h"

#include <exception>

#include "core/run/agent/run.h"
#include "core/run/stop/early_stop.h"
#include "kernels/cpu/cpu_backend.h"

namespace trainerd::core::run {

AgentResult run_agent(const AgentOptions& options) {
  std::optional<Membership> membership;
  if (options.membership) membership.emplace(*options.membership, options.job, options.signal_fd);
  else membership.emplace();
  if (membership->over()) return {0, membership->end()->stop_signal};
  try {
    AgentOptions here = options;
    // Of the job that workers get: where a node has less, it limits the others.
    if (!membership->alone() && options.job.device != job::DeviceChoice::cuda &&
        membership->isa() < kernels::detect_cpu(1, job::most_isa(options.job)).isa)
      here.job.isa = job::choice_of(membership->isa());
    // The other nodes leave when this one says so; a signal to one of them is passed on when it has planned.
    std::optional<EarlyStop> early;
    if (membership->leads())
      early.emplace(options.signal_fd, [&](const StopRequest& stop) {
        membership->finish({.stop_signal = stop.exit_signal});
        options.leave(stop);
      });
    Run run(here, *membership);
    run.prepare();
    early.reset();
    const AgentResult result = run.run();
    membership->finish({.stop_signal = result.stop_signal});
    return result;
  } catch (const std::exception& error) {
    membership->finish(end_by(error));
    options.log->add("error", error.what());
    options.log->finish();
    throw;
  }
}

}  // namespace trainerd::core::run
