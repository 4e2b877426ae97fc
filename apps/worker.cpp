#include <utility>
#include <vector>

#include "apps/commands.h"
#include "apps/nodes.h"
#include "core/run/worker/worker.h"
#include "core/run/worker/worker_process.h"

namespace trainerd::apps {

int worker_command(const WorkerArgs& args) {
  core::run::leave_signals_to_agent();
  core::run::name_rank(args.rank);
  if (!core::run::die_with_parent(static_cast<pid_t>(args.parent))) return 1;
  int next = args.control;
  core::run::WorkerMemory memory;
  for (int i = 0; i < args.segments; ++i) memory.segments.emplace_back(++next);
  if (args.world != 0) memory.world = base::UniqueFd(++next);
  if (args.flights != 0) memory.flights = base::UniqueFd(++next);
  for (int i = 0; i < args.held; ++i) memory.held.emplace_back(++next);
  return core::run::run_worker(base::UniqueFd(args.control), std::move(memory), std::nullopt,
                               [] { return io::s3_settings(process_environment); });
}

}  // namespace trainerd::apps
