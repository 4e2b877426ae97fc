#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/rank/dry_run.h"

namespace trainerd::core::plan {

/// Ranks with the same plan.
struct RankClass {
  rank::DryRun plan;
  std::int64_t ranks = 1;
};

/// Planned memory of ranks by use: parameters, gradients, optimizer (master weights and moments), activations
/// (logits included), workspace, other. The sum equals that of the regions. Uses with no bytes are left out.
std::vector<std::pair<std::string, std::int64_t>> memory_by_use(std::span<const RankClass> classes);

}  // namespace trainerd::core::plan
