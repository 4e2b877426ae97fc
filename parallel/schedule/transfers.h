#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"

namespace trainerd::parallel {

/// Adds the sends and receives between ranks to their compute orders. A message that is posted before it is
/// used overlaps the computations in between, even if a send waits for its receiver. Each message needs a
/// buffer. A rank with one chunk has one per direction. Several chunks of a rank share two, or as many as
/// there are messages that arrive before the first of them is used.
std::vector<std::vector<Action>> with_transfers(const ScheduleShape& shape,
                                                const std::vector<std::vector<Action>>& orders);

}  // namespace trainerd::parallel
