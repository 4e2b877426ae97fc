#include "core/run/nodes/state_choice.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "io/checkpoint/checkpoint.h"

namespace trainerd::core::run {
namespace {

using Boxes = std::map<std::string, std::vector<io::TensorSlice>>;  // by tensor

/// By lead: the newest step that all agents with own snapshots of it hold; absent: there is none.
std::map<std::string, std::int64_t> newest_common(std::span<const ShownOffer> shown) {
  std::map<std::string, std::map<std::int64_t, std::set<std::int64_t>>> steps;  // by lead, by agent
  for (const ShownOffer& s : shown)
    if (s.offer.own) steps[s.offer.cut.run][s.from].insert(s.offer.cut.step);
  std::map<std::string, std::int64_t> common;
  for (const auto& [run, by_agent] : steps) {
    const std::set<std::int64_t>& first = by_agent.begin()->second;
    for (auto step = first.rbegin(); step != first.rend(); ++step)
      if (std::all_of(by_agent.begin(), by_agent.end(),
                      [&](const auto& agent) { return agent.second.contains(*step); })) {
        common[run] = *step;
        break;
      }
  }
  return common;
}

bool hold_all(const Boxes& held, std::span<const io::TensorSlice> needed) {
  return std::all_of(needed.begin(), needed.end(), [&](const io::TensorSlice& box) {
    const auto of = held.find(box.name);
    return of != held.end() && io::covers(of->second, box);
  });
}

/// What a cut has, if it is enough.
std::optional<StateChoice> choice_of(const StateCut& cut, std::span<const ShownOffer> usable,
                                     std::span<const io::TensorSlice> needed) {
  std::map<std::int64_t, StateSource> best;  // by node
  for (const ShownOffer& s : usable) {
    if (s.offer.cut != cut) continue;
    const StateSource source{s.offer.node, s.from, !s.offer.own};
    const auto [at, is_new] = best.try_emplace(source.of, source);
    if (!is_new && at->second.copy && !source.copy) at->second = source;
  }
  Boxes held;
  for (const ShownOffer& s : usable) {
    if (s.offer.cut != cut || best.at(s.offer.node).from != s.from) continue;
    for (const io::TensorSlice& slice : s.offer.slices) held[slice.name].push_back(slice);
  }
  if (!hold_all(held, needed)) return std::nullopt;
  StateChoice choice{cut, {}};
  for (const auto& [of, source] : best) choice.sources.push_back(source);
  return choice;
}

}  // namespace

bool StateChoice::from_copies() const {
  return std::any_of(sources.begin(), sources.end(), [](const StateSource& s) { return s.copy; });
}

std::optional<StateChoice> choose_state(std::span<const ShownOffer> shown,
                                        std::span<const io::TensorSlice> needed, std::int64_t most_step) {
  const std::map<std::string, std::int64_t> common = newest_common(shown);
  std::vector<ShownOffer> usable;
  for (const ShownOffer& s : shown) {
    const auto newest = common.find(s.offer.cut.run);
    const bool is_common = newest != common.end() && newest->second == s.offer.cut.step;
    if (s.offer.cut.step <= most_step && (!s.offer.own || s.offer.taken || is_common)) usable.push_back(s);
  }
  std::vector<StateCut> cuts;  // newest first
  for (const ShownOffer& s : usable)
    if (std::find(cuts.begin(), cuts.end(), s.offer.cut) == cuts.end()) cuts.push_back(s.offer.cut);
  std::stable_sort(cuts.begin(), cuts.end(),
                   [](const StateCut& a, const StateCut& b) { return a.step > b.step; });
  for (const StateCut& cut : cuts)
    if (auto choice = choice_of(cut, usable, needed)) return choice;
  return std::nullopt;
}

std::vector<StateShown> shown_states(std::int64_t number, std::span<const HeldState> states,
                                     std::size_t boxes) {
  std::vector<StateShown> parts;
  std::size_t taken = boxes;  // of the last part
  for (const HeldState& state : states) {
    StateOffer empty{state.cut, state.copy.node, state.taken, state.own, state.head, {}};
    bool begun = false;
    for (const NodeCopy::Rank& rank : state.copy.ranks) {
      if (taken + rank.slices.size() > boxes || parts.empty()) {
        parts.push_back({.number = number});
        taken = 0;
        begun = false;
      }
      taken += rank.slices.size();
      if (!std::exchange(begun, true)) parts.back().offers.push_back(empty), empty.head.clear();
      std::vector<io::TensorSlice>& slices = parts.back().offers.back().slices;
      slices.insert(slices.end(), rank.slices.begin(), rank.slices.end());
    }
  }
  parts.push_back({.number = number, .last = true});
  return parts;
}

}  // namespace trainerd::core::run
