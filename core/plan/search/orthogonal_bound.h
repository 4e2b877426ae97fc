#pragma once

#include "core/plan/search/probe_job.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

/// Lower bound on the seconds in which one rank orthogonalises a layer's matrices, those of all experts
/// included. Ranks that share the matrices of several layers need at least this divided by their number.
double orthogonal_seconds(job::ModelOptions model, MlpKind mlp, const parallel::Topology& topology);

}  // namespace trainerd::core::plan
