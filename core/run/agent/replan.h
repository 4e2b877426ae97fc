#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/job/job.h"
#include "core/plan/search/layout_space.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::run {

/// The layout for all ranks of `nodes` of the job's nodes, by the planner: the fastest that fits by `rates`,
/// of a cluster of machines like these (AgentOptions); without, of those that fit one that differs from the
/// job's own in the fewest keys. Some rank is without a sequence only where that is so in the job's own, or
/// there is no other. None where none fits, or only with fewer replicas than `cluster.failures.min_replicas`,
/// or where the job takes none of the best 25 for what it has besides (`is_valid`).
std::optional<plan::LayoutChoice> replanned(const job::JobSpec& whole, std::int64_t nodes,
                                            const std::optional<parallel::Topology>& rates,
                                            const std::function<bool(const plan::LayoutChoice&)>& is_valid);

/// The job with that layout on so many nodes.
job::JobSpec with_layout(const job::JobSpec& whole, std::int64_t nodes, const plan::LayoutChoice& layout);

/// The text that agents send each other. `layout_from` throws SpecError for any other text.
std::string layout_text(const plan::LayoutChoice& layout);
plan::LayoutChoice layout_from(const std::string& text);

}  // namespace trainerd::core::run
