#include "apps/descriptors.h"

#include <sys/resource.h>

#include <string>

#include "kernels/base/error.h"

namespace trainerd::apps {

void allow_descriptors(std::int64_t ranks_here, std::int64_t ranks) {
  // Own: the agent's files, sockets and threads, and descriptors for workers, which are numbered from 64 on.
  // Per worker: its segments, socket and process. Per rank of the job: its connections to node 0 and to every
  // other rank.
  constexpr std::int64_t kOwn = 80, kOfWorker = 8, kOfRank = 2;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const auto needed = static_cast<rlim_t>(kOwn + kOfWorker * ranks_here + kOfRank * ranks);
  if (limit.rlim_max >= needed) return;
  throw base::capacity_error("the limit on open files is " + std::to_string(limit.rlim_max) +
                             " (ulimit -n) and " + std::to_string(ranks_here) +
                             (ranks_here == 1 ? " rank on this node needs " : " ranks on this node need ") +
                             std::to_string(needed) + ": raise it, for example with `ulimit -n 4096`");
}

}  // namespace trainerd::apps
