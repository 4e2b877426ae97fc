#pragma once

#include "parallel/layout/measured_rates.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

/// Seconds of collectives among all devices of a node, and of messages, over its shared memory: see
/// MeasuredRates::collectives. Medians of 25 rounds, or of the at least 3 that end before `late`, a time of
/// base::monotonic_seconds().
parallel::MeasuredRates::Operators measure_collectives(const parallel::Topology& node, double late);

}  // namespace trainerd::core::plan
