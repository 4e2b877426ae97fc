#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/job/job.h"
#include "core/plan/search/layout_space.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::run {

/// The planner's layout for all ranks of `nodes` of the job's nodes. With `rates` (AgentOptions::rates) it is
/// the fastest that fits; without, the one that fits and differs from the job's own in the fewest keys.
/// Layouts in which some rank has no sequence are used only if the job's own is one, or there is no other.
/// None if no layout fits, if only layouts with fewer than `cluster.failures.min_replicas` replicas do, or if
/// `is_valid` rejects the 25 best.
std::optional<plan::LayoutChoice> replanned(const job::JobSpec& whole, std::int64_t nodes,
                                            const std::optional<parallel::Topology>& rates,
                                            const std::function<bool(const plan::LayoutChoice&)>& is_valid);

/// The job with that layout on `nodes` nodes.
job::JobSpec with_layout(const job::JobSpec& whole, std::int64_t nodes, const plan::LayoutChoice& layout);

/// The layout as text, for messages between agents. `layout_from` throws SpecError for an invalid text.
std::string layout_text(const plan::LayoutChoice& layout);
plan::LayoutChoice layout_from(const std::string& text);

}  // namespace trainerd::core::run
