#pragma once

#include <vector>

#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// The shared memories that an agent gives a worker, as descriptors. An empty one is not given.
struct WorkerMemory {
  std::vector<base::UniqueFd> segments;  ///< of its snapshots, filled in turn
  base::UniqueFd world;                  ///< what the ranks of the node share; none for a rank alone
  base::UniqueFd flights;                ///< what the ranks of the node do, and communicated last
  /// By rank of the node: the snapshot to begin from; empty: the worker begins from elsewhere.
  std::vector<base::UniqueFd> held;
};

}  // namespace trainerd::core::run
