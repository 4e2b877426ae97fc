#pragma once

#include <cstdint>

#include "core/model/param_info.h"
#include "core/train/rank_groups.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::train {

/// Where a rank stands for its parameters in a layout. Its groups outlive the placement.
model::ParamPlacement param_placement(const parallel::Layout& layout, const RankGroups& groups,
                                      std::int64_t microbatches);

}  // namespace trainerd::core::train
