#pragma once

#include <string>

#include "core/job/job.h"
#include "parallel/layout/placement.h"

namespace trainerd::core::spec {

/// The placed grid as YAML comments: the location of each rank, and each axis' groups with the link they use.
/// For a large world only the first group of each axis.
std::string placement_comments(const parallel::PlacedGrid& placed);

/// One JSON object: `spec` (the resolved job), `ranks` (rank, node, device and coordinate on each axis),
/// `groups` (for each axis the list of rank lists) and `links` (for each axis the link of each of its groups,
/// in the same order).
std::string job_json(const job::JobSpec& job, const parallel::PlacedGrid& placed);

}  // namespace trainerd::core::spec
