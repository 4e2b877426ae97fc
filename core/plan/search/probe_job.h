#pragma once

#include <cstdint>

#include "core/plan/search/layout_space.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::plan {

/// A small job that records one chunk of a layout: the stage with these ends and layers in a pipeline of
/// three stages, or a single stage if it has both ends.
struct ProbeJob {
  job::JobSpec job;
  parallel::Layout layout;  ///< with one level of data-parallel ranks
  std::int64_t stage = 0;
  std::int64_t rank = 0;  ///< the rank to record
};

/// What a layer's MLP is, in models with experts.
enum class MlpKind : std::uint8_t { dense, experts };

/// `choice.pp` and `virtual_stages` are set here. All other options come from `choice`.
ProbeJob probe_job(const job::JobSpec& job, LayoutChoice choice, const parallel::ChunkSpan& chunk,
                   MlpKind mlp, std::int64_t microbatches);

}  // namespace trainerd::core::plan
