#pragma once

#include <cstddef>
#include <optional>

#include "core/run/worker/worker_memory.h"
#include "io/s3/settings.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// The worker process: waits for `Start` on `control`, trains, and reports to the agent. Returns when
/// training has ended; after an error, which is sent to the agent, the status is not 0. Ends at once if the
/// agent is gone. If the device runs asynchronously to the host, steps are reported one step late, except
/// before a checkpoint, an evaluation or a trace, so a vote to stop takes effect one step later. `late`
/// overrides that number of steps. `find_s3`: for data at s3://.
int run_worker(base::UniqueFd control, WorkerMemory memory, std::optional<std::size_t> late = std::nullopt,
               const io::FindS3& find_s3 = {});

}  // namespace trainerd::core::run
