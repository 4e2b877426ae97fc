#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"

namespace trainerd::parallel {

/// Adds to the ranks' compute orders the sends and receives that carry data between them. A message that is
/// posted before it is used travels behind what the rank computes meanwhile, also where a send waits for its
/// receiver. Each message needs a buffer. A rank of a chain has one per direction; in a ring all chunks of a
/// rank share two, or as many as messages arrive before the first of them is used.
std::vector<std::vector<Action>> with_transfers(const ScheduleShape& shape,
                                                const std::vector<std::vector<Action>>& orders);

}  // namespace trainerd::parallel
