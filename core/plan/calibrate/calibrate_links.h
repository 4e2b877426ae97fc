#pragma once

#include "parallel/layout/measured_rates.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

/// Seconds of collectives among all devices of a node, and of messages, over shared memory: see
/// MeasuredRates::collectives. Values are medians of up to 25 rounds. Rounds stop after `late` (on the clock
/// of base::monotonic_seconds()), but not before 3.
parallel::MeasuredRates::Operators measure_collectives(const parallel::Topology& node, double late);

}  // namespace trainerd::core::plan
