#pragma once

#include "core/job/model_options.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

/// Lower bound on the seconds in which one rank orthogonalises a layer's matrices. Ranks that share the
/// matrices of several layers need at least this divided by their number.
double orthogonal_seconds(const job::ModelOptions& model, const parallel::Topology& topology);

}  // namespace trainerd::core::plan
