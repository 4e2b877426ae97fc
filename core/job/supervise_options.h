#pragma once

#include <cstdint>
#include <string>

namespace trainerd::core::job {

/// How a run watches its ranks and nodes.
struct SuperviseOptions {
  // Between the agents of several nodes:
  double heartbeat_seconds = 1;   ///< between two beats
  double dead_after_seconds = 5;  ///< without one, after which a node counts as lost
  /// Where the agents find who leads: "etcd://host:port[,host:port...]"; empty: node 0's agent, and the run
  /// ends with it.
  std::string coordinator = {};
  /// A rank is hung when it makes no progress for so many times what its own record says that it takes; 0:
  /// nothing is judged.
  double hang_factor = 3;
  double hang_minimum_seconds = 5;  ///< it is never judged sooner
  // What should be the same on several ranks, compared.
  std::int64_t hash_every = 0;  ///< steps; 0: never

  bool operator==(const SuperviseOptions&) const = default;
};

}  // namespace trainerd::core::job
