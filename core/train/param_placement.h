#pragma once

#include <cstdint>

#include "core/model/param_info.h"
#include "core/train/rank_groups.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::train {

/// A rank's groups and roles for its parameters in a layout. The groups must outlive the placement.
model::ParamPlacement param_placement(const parallel::Layout& layout, const RankGroups& groups,
                                      std::int64_t microbatches);

}  // namespace trainerd::core::train
