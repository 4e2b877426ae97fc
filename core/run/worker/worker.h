#pragma once

#include <cstddef>
#include <optional>

#include "core/run/worker/worker_memory.h"
#include "io/s3/settings.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// The worker: waits for `Start` on `control`, trains, reports to the agent. Returns when training
/// has ended; an error has then been sent to the agent and the status is not 0. Ends at once when the agent
/// is gone. Where the device runs behind the host, steps are reported one step late, but for those that a
/// checkpoint, an evaluation or a trace awaits; so a vote to stop takes effect one step later there. `late`,
/// when given, takes the place of the value found from the device. `find_s3`: for data at s3://.
int run_worker(base::UniqueFd control, WorkerMemory memory, std::optional<std::size_t> late = std::nullopt,
               const io::FindS3& find_s3 = {});

}  // namespace trainerd::core::run
