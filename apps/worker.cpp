#include <signal.h>

#include <utility>
#include <vector>

#include "apps/commands.h"
#include "core/supervise/worker.h"
#include "core/supervise/worker_process.h"

namespace trainerd::apps {

int worker_command(const WorkerArgs& args) {
  if (!core::die_with_parent(static_cast<pid_t>(args.parent))) return 1;
  ::signal(SIGPIPE, SIG_IGN);
  std::vector<base::UniqueFd> segments;
  for (int i = 0; i < args.segments; ++i) segments.emplace_back(args.control + 1 + i);
  return core::run_worker(base::UniqueFd(args.control), std::move(segments));
}

}  // namespace trainerd::apps
