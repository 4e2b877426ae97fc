#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/rank/dry_run.h"

namespace trainerd::core::plan {

/// Ranks that plan the same.
struct RankClass {
  rank::DryRun plan;
  std::int64_t ranks = 1;
};

/// The planned memory of ranks by what is kept there: parameters, gradients, optimizer (master weights and
/// moments), activations (logits included), workspace, other. The sum is that of the regions; a use without a
/// byte is left out.
std::vector<std::pair<std::string, std::int64_t>> memory_by_use(std::span<const RankClass> classes);

}  // namespace trainerd::core::plan
