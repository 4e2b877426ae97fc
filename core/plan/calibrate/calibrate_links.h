#pragma once

#include "parallel/layout/measured_rates.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

/// Seconds of collectives among all devices of a node, and of messages, over its shared memory: see
/// MeasuredRates::collectives.
parallel::MeasuredRates::Operators measure_collectives(const parallel::Topology& node);

}  // namespace trainerd::core::plan
