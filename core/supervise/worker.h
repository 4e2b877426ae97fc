#pragma once

#include <vector>

#include "kernels/base/fd.h"

namespace trainerd::core {

/// The worker: waits for `Start` on `control`, trains, tells the agent what it does. `segments` are the shared memories that
/// it fills with snapshots in turn. Returns when training has ended; an error has then been told to the agent and the
/// status is not 0. Ends at once when the agent is gone.
int run_worker(base::UniqueFd control, std::vector<base::UniqueFd> segments);

}  // namespace trainerd::core
