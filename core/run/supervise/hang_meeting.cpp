#include "core/run/supervise/hang_meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/run/supervise/hang_words.h"

namespace trainerd::core::run {
namespace {

using train::Activity;

/// The collective that the rank waits in; null: none, or it waits for the group's members to come.
const SeenOperation* collective_of(const RankSight& sight) {
  if (sight.activity == Activity::meet) return nullptr;
  const SeenOperation* op = of_group(sight, *sight.waits, parallel::FlightState::started);
  return op != nullptr ? op : of_group(sight, *sight.waits, parallel::FlightState::enqueued);
}

std::string absent_does(const RankSight& sight, const HangLimits& limits) {
  if (sight.still.disk >= limits.minimum_seconds) return evidence(HangCause::disk, sight);
  if (sight.still.asleep >= limits.minimum_seconds) return evidence(HangCause::asleep, sight);
  return "its process computes";
}

bool several_nodes(const SightByRank& ranks) {
  return std::ranges::any_of(
      ranks, [&](const auto& entry) { return entry.second->node != ranks.begin()->second->node; });
}

/// Of the group that `first` waits in.
std::optional<HangVerdict> judge_group(const parallel::GroupMembers& group, const RankSight& first,
                                       const SightByRank& ranks, const parallel::Layout& layout,
                                       const HangLimits& limits) {
  const SeenOperation* op = collective_of(first);
  if (first.activity != Activity::meet && op == nullptr) return std::nullopt;
  std::vector<std::int64_t> waiting, missing;
  for (const std::int64_t member : group.ranks.list()) {
    const auto seen = ranks.find(member);
    const Activity activity = seen == ranks.end() ? Activity::none : seen->second->activity;
    const bool in_it = op != nullptr ? seen != ranks.end() && has_entered(*seen->second, *op)
                                     : activity == Activity::meet && seen->second->waits == group.group;
    if (in_it) waiting.push_back(member);
    else if (activity == Activity::none || (activity == Activity::load && !seen->second->waits))
      missing.push_back(member);
  }
  // Else they wait in another group, or it is a link that holds up what they have all entered.
  const bool all = std::cmp_equal(waiting.size(), group.ranks.count);
  if (missing.empty() && (!all || op != nullptr)) return std::nullopt;
  const bool idle = std::ranges::any_of(
      missing, [&](std::int64_t member) { return ranks.contains(member) && limits.idle(*ranks.at(member)); });
  if (!idle && !limits.meets_far_too_long(first)) return std::nullopt;
  const char* name = parallel::info(group.group).name;
  HangVerdict verdict{.kind = "meet",
                      .restart = false,
                      .ranks = missing.empty() ? waiting : missing,
                      .deadline_seconds = limits.meeting_seconds(idle)};
  if (missing.empty())
    verdict.message = fmt::format(
        "{} have all come to group {} and do not connect: a link between their nodes is down or loses what "
        "is "
        "sent",
        names(waiting), name);
  const std::string what = op != nullptr ? fmt::format("has not entered {} of group {}", describe(*op), name)
                                         : fmt::format("has not come to group {}", name);
  for (const std::int64_t member : missing) {
    const auto seen = ranks.find(member);
    const std::string line =
        seen == ranks.end() ? fmt::format("rank {} {}; its agent does not answer", member, what)
                            : fmt::format("{} {}; last seen in {}, {:.1f} s ago; {}",
                                          place_of(member, seen->second->node, several_nodes(ranks), layout),
                                          what, doing(*seen->second), seen->second->beat_seconds,
                                          absent_does(*seen->second, limits));
    if (!verdict.message.empty()) verdict.details.push_back(line);
    else
      verdict.message =
          fmt::format("{}; {} {} for it", line, names(waiting), waiting.size() == 1 ? "waits" : "wait");
  }
  return verdict;
}

}  // namespace

std::optional<HangVerdict> judge_meeting(const SightByRank& ranks, const parallel::Layout& layout,
                                         const parallel::GroupNeeds& needs, const HangLimits& limits) {
  for (const auto& [rank, sight] : ranks) {
    if (!limits.meets_too_long(*sight)) continue;
    for (const parallel::GroupMembers& group : parallel::groups_of(layout, rank, needs))
      if (group.group == *sight->waits)
        if (auto found = judge_group(group, *sight, ranks, layout, limits)) return found;
  }
  return std::nullopt;
}

std::string met_by(std::int64_t rank, const SightByRank& ranks, const parallel::Layout& layout,
                   const parallel::GroupNeeds& needs) {
  std::vector<std::int64_t> waiting;
  std::string name;
  for (const auto& [other, sight] : ranks) {
    if (other == rank || sight->activity != Activity::meet || !sight->waits) continue;
    for (const parallel::GroupMembers& group : parallel::groups_of(layout, other, needs))
      if (group.group == *sight->waits && group.ranks.place(rank))
        waiting.push_back(other), name = parallel::info(group.group).name;
  }
  if (waiting.empty()) return "";
  return fmt::format("; {} {} for it to come to group {}", names(waiting),
                     waiting.size() == 1 ? "waits" : "wait", name);
}

}  // namespace trainerd::core::run
