#pragma once

#include "core/job/model_options.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

/// Seconds in which one rank orthogonalises the matrices of a layer at least. Ranks that share out the
/// matrices of several layers take this divided by their number, or longer.
double orthogonal_seconds(const job::ModelOptions& model, const parallel::Topology& topology);

}  // namespace trainerd::core::plan
