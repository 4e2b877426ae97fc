#include <utility>
#include <vector>

#include "apps/commands.h"
#include "core/run/worker/worker.h"
#include "core/run/worker/worker_process.h"

namespace trainerd::apps {

int worker_command(const WorkerArgs& args) {
  core::leave_signals_to_agent();
  core::name_rank(args.rank);
  if (!core::die_with_parent(static_cast<pid_t>(args.parent))) return 1;
  std::vector<base::UniqueFd> segments;
  for (int i = 0; i < args.segments; ++i) segments.emplace_back(args.control + 1 + i);
  base::UniqueFd world(args.world != 0 ? args.control + 1 + args.segments : -1);
  return core::run_worker(base::UniqueFd(args.control), std::move(segments), std::move(world));
}

}  // namespace trainerd::apps
