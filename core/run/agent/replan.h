#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/job/job.h"
#include "core/plan/search/layout_space.h"

namespace trainerd::core::run {

/// The layout for all ranks of `nodes` of the job's nodes, by the planner: the fastest that fits; where the
/// machines have no measured rates, of those that fit one that differs from the job's own in the fewest keys.
/// None where none fits, or only with fewer replicas than `cluster.failures.min_replicas`.
std::optional<plan::LayoutChoice> replanned(const job::JobSpec& whole, std::int64_t nodes);

/// The job with that layout on so many nodes.
job::JobSpec with_layout(const job::JobSpec& whole, std::int64_t nodes, const plan::LayoutChoice& layout);

/// As agents tell each other. `layout_from` throws SpecError where the text is none.
std::string layout_text(const plan::LayoutChoice& layout);
plan::LayoutChoice layout_from(const std::string& text);

}  // namespace trainerd::core::run
