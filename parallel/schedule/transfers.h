#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"

namespace trainerd::parallel {

/// Adds to the ranks' compute orders the sends and receives that carry data between them.
std::vector<std::vector<Action>> with_transfers(const ScheduleShape& shape,
                                                const std::vector<std::vector<Action>>& orders);

}  // namespace trainerd::parallel
