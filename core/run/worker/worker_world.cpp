#include "core/run/worker/worker_world.h"

#include <utility>

namespace trainerd::core::run {

std::unique_ptr<RankWorld> make_world(const job::JobSpec& job, const Start& start,
                                      const parallel::Topology& topology, base::UniqueFd shared,
                                      base::UniqueFd flights) {
  // Polling before a sleep is faster if every rank has its own cores; else it takes time from other ranks.
  constexpr double kSpinSeconds = 100e-6;
  const bool own_cores = start.node_count * topology.device.threads <= kernels::detect_cpu().threads;
  return std::make_unique<RankWorld>(job, start.layout,
                                     RankWorld::Options{.rank = start.rank,
                                                        .here = {start.node_first, start.node_count},
                                                        .shared = std::move(shared),
                                                        .flights = std::move(flights),
                                                        .attempt = start.attempt,
                                                        .spin_seconds = own_cores ? kSpinSeconds : 0.0,
                                                        .rendezvous = start.rendezvous,
                                                        .token = start.token,
                                                        .device = topology.device_of(start.rank),
                                                        .interface = start.interface});
}

}  // namespace trainerd::core::run
