#pragma once

#include <cstdint>

#include "core/model/param_info.h"
#include "core/model/parameters.h"
#include "core/train/rank_groups.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::train {

/// A rank's groups and roles for its parameters in a layout. The groups must outlive the placement.
model::ParamPlacement param_placement(const parallel::Layout& layout, const RankGroups& groups,
                                      std::int64_t microbatches);

/// The rank's experts.
model::ExpertShare expert_share(const parallel::Layout& layout, std::int64_t rank);

}  // namespace trainerd::core::train
