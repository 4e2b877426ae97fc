#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/run/supervise/hang_verdict.h"

namespace trainerd::core::run {

using SightByRank = std::map<std::int64_t, const RankSight*>;

/// The first group whose members wait for others to come, before the first step, or do not connect: "meet".
std::optional<HangVerdict> judge_meeting(const SightByRank& ranks, const parallel::Layout& layout,
                                         const parallel::GroupNeeds& needs, const HangLimits& limits);

/// "; ranks 0, 1 wait for it to come to group world"; empty: none does.
std::string met_by(std::int64_t rank, const SightByRank& ranks, const parallel::Layout& layout,
                   const parallel::GroupNeeds& needs);

}  // namespace trainerd::core::run
