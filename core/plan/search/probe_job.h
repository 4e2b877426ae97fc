#pragma once

#include <cstdint>

#include "core/plan/search/layout_space.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::plan {

/// A small job that records what one chunk of a layout does: of a pipeline of three stages the one with these
/// ends and layers, or with both ends a stage alone.
struct ProbeJob {
  job::JobSpec job;
  parallel::Layout layout;  ///< of one level of data-parallel ranks
  std::int64_t stage = 0;
  std::int64_t rank = 0;  ///< that is recorded
};

/// `choice.pp` is set here; all else of it is the probe's, with so many microbatches.
ProbeJob probe_job(const job::JobSpec& job, LayoutChoice choice, const parallel::ChunkSpan& chunk,
                   std::int64_t microbatches);

}  // namespace trainerd::core::plan
