#pragma once

#include <vector>

#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// The shared memory that an agent gives a worker, as descriptors; an empty one is not given.
struct WorkerMemory {
  std::vector<base::UniqueFd> segments;  ///< for its snapshots, filled in turn
  base::UniqueFd world;                  ///< shared by the node's ranks; none if there is only one
  base::UniqueFd flights;                ///< activity pages and rings of the node's ranks
  /// By the rank's place in the node: snapshots to begin from; empty if the worker does not.
  std::vector<base::UniqueFd> held;
};

}  // namespace trainerd::core::run
