#include "core/run/supervise/hang_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/run/supervise/hang_meeting.h"
#include "core/run/supervise/hang_words.h"
#include "parallel/layout/schedule_shape.h"

namespace trainerd::core::run {
namespace {

using parallel::Axis;
using parallel::FlightState;
using parallel::Group;
using parallel::RankRange;
using train::Activity;

/// What one rank waits for.
struct Wait {
  const RankSight* rank = nullptr;
  const SeenOperation* op = nullptr;       ///< the collective
  std::optional<RankRange> members = {};   ///< of the collective's group
  std::vector<std::int64_t> missing = {};  ///< members not in it yet, or neighbours that may send the message
  bool complete = true;                    ///< all of these ranks have been seen
  bool message = false;                    ///< it waits for a pipeline neighbour's message

  std::string key() const { return fmt::format("{}/{}/{}", op->group, members->first, op->sequence); }
};

class Judge {
 public:
  Judge(std::span<const RankSight> sights, const parallel::Layout& layout, const parallel::GroupNeeds& needs,
        const HangLimits& limits)
      : layout_(layout), needs_(needs), limits_(limits) {
    for (const RankSight& sight : sights) {
      ranks_[sight.rank] = &sight;
      several_nodes_ = several_nodes_ || sight.node != sights.front().node;
    }
    for (const auto& [rank, sight] : ranks_)
      if (auto wait = wait_of(*sight)) waits_.emplace(rank, *std::move(wait));
  }

  std::optional<HangVerdict> verdict() const {
    if (auto found = mismatch()) return found;
    if (auto found = culprits(/*restart=*/true)) return found;
    if (auto found = stuck()) return found;
    if (auto found = deadlock()) return found;
    if (auto found = culprits(/*restart=*/false)) return found;
    return judge_meeting(ranks_, layout_, needs_, limits_);
  }

 private:
  std::string place(const RankSight& sight) const {
    return place_of(sight.rank, sight.node, several_nodes_, layout_);
  }

  /// The group that the rank waits in: its main thread, or its device, by a collective rather than by an
  /// exchange, which may have been issued early.
  static std::optional<Group> group_of(const RankSight& sight) {
    // A rank's own link to its host makes it wait for no other rank.
    if (sight.waits && parallel::is_host_link(*sight.waits)) return std::nullopt;
    if (sight.waits || sight.activity != Activity::report) return sight.waits;
    bool message = false;
    for (const SeenOperation& op : sight.operations) {
      if (op.state != FlightState::started) continue;
      message = message || op.exchange();
      for (const parallel::GroupInfo& group : parallel::kGroups)
        if (op.group == group.name && !op.exchange()) return group.group;
    }
    return message ? std::optional(Group::pp) : std::nullopt;
  }

  std::optional<Wait> wait_of(const RankSight& sight) const {
    if (sight.activity == Activity::meet) return std::nullopt;  // of no operation: `meeting`
    const std::optional<Group> group = group_of(sight);
    if (!group) return std::nullopt;
    Wait wait{.rank = &sight};
    for (const parallel::GroupMembers& members : parallel::groups_of(layout_, sight.rank, needs_))
      if (members.group == *group) wait.members = members.ranks;
    if (!wait.members) return std::nullopt;
    if (*group == Group::pp) {
      await_neighbours(wait);
      return wait;
    }
    wait.op = of_group(sight, *group, FlightState::started);
    if (wait.op == nullptr) wait.op = of_group(sight, *group, FlightState::enqueued);
    // The rank has not started its operation, or has ended it, or the ring has overwritten it.
    if (wait.op == nullptr) return std::nullopt;
    await_members(wait);
    return wait;
  }

  /// The sender of the awaited message is unknown. The rank may wait for an exchange while its page still
  /// shows the computation before it, or later, or on the device.
  void await_neighbours(Wait& wait) const {
    wait.message = true;
    const RankRange& stages = *wait.members;
    const std::int64_t place = *stages.place(wait.rank->rank);
    // In a ring the first rank follows the last one.
    const bool ring = parallel::schedule_shape(layout_.options, 1).ring();
    for (std::int64_t next : {place - 1, place + 1}) {
      if (ring) next = (next + stages.count) % stages.count;
      if (next < 0 || next >= stages.count || next == place) continue;
      const std::int64_t peer = stages[next];
      if (std::ranges::find(wait.missing, peer) != wait.missing.end()) continue;
      wait.missing.push_back(peer);
      wait.complete = wait.complete && ranks_.contains(peer);
    }
  }

  /// True if the ring may have overwritten the operation that the rank waits in. A group's operations end in
  /// order: if a later one is in the ring and done, none is under way.
  static bool lost(const RankSight& sight) {
    const std::vector<SeenOperation>& operations = sight.operations;
    if (operations.empty() || operations.front().order <= 1) return false;
    if (sight.waits)
      return !parallel::is_host_link(*sight.waits) &&
             std::ranges::none_of(
                 operations, [&](const SeenOperation& op) { return op.group == info(*sight.waits).name; });
    // The device is at an operation older than all that the host has issued last.
    return sight.activity == Activity::report && operations.front().state == FlightState::enqueued;
  }

  void await_members(Wait& wait) const {
    for (const std::int64_t member : wait.members->list()) {
      const auto seen = ranks_.find(member);
      if (seen == ranks_.end()) wait.complete = false;
      else if (!has_entered(*seen->second, *wait.op)) wait.missing.push_back(member);
    }
  }

  Awaits awaits(std::int64_t rank) const {
    const auto found = waits_.find(rank);
    if (found == waits_.end()) return lost(*ranks_.at(rank)) ? Awaits::others : Awaits::none;
    const Wait& wait = found->second;
    if (wait.message || !wait.complete || !wait.missing.empty()) return Awaits::others;
    // Some member has already left the collective.
    const bool left = std::ranges::any_of(wait.members->list(), [&](std::int64_t member) {
      return std::ranges::any_of(ranks_.at(member)->operations, [&](const SeenOperation& other) {
        return !other.exchange() && other.group == wait.op->group &&
               (other.sequence > wait.op->sequence ||
                (other.sequence == wait.op->sequence && other.state == FlightState::done));
      });
    });
    return left ? Awaits::none : Awaits::all_there;
  }

  bool late(const Wait& wait) const { return limits_.waits_too_long(*wait.rank); }

  // ---- mismatch: different operations

  std::optional<HangVerdict> mismatch() const {
    for (const auto& [rank, wait] : waits_) {
      if (wait.message || !late(wait)) continue;
      for (const std::int64_t member : wait.members->list()) {
        const auto seen = ranks_.find(member);
        const SeenOperation* other = seen == ranks_.end() ? nullptr : same_number(*seen->second, *wait.op);
        if (other == nullptr || agree(*wait.op, *other)) continue;
        const auto text = [this](const RankSight& sight, const SeenOperation& op) {
          return fmt::format("{} {} of {} bytes {}", place(sight), describe(op), op.bytes, op.dtype);
        };
        return HangVerdict{
            .kind = "mismatch",
            .own = in_step(wait.rank->activity),
            .ranks = {std::min(rank, member), std::max(rank, member)},
            .message = fmt::format("the ranks of group {} called different operations: {}; {}",
                                   wait.op->group, text(*wait.rank, *wait.op), text(*seen->second, *other)),
            .deadline_seconds = limits_.still_seconds(*wait.rank)};
      }
    }
    return std::nullopt;
  }

  static const SeenOperation* same_number(const RankSight& sight, const SeenOperation& op) {
    for (const SeenOperation& other : sight.operations)
      if (!other.exchange() && other.group == op.group && other.sequence == op.sequence) return &other;
    return nullptr;
  }
  static bool agree(const SeenOperation& a, const SeenOperation& b) {
    return a.op == b.op && a.label == b.label && a.bytes == b.bytes && a.dtype == b.dtype;
  }

  // ---- ranks that make no progress

  std::optional<HangVerdict> culprits(bool restart) const {
    std::optional<HangVerdict> verdict;
    for (const auto& [rank, sight] : ranks_) {
      const std::optional<HangCause> cause = limits_.cause(*sight, awaits(rank));
      if (!cause || (*cause == HangCause::disk || *cause == HangCause::data) == restart) continue;
      // A sleeping rank may wait for a stopped process without showing that on its page.
      if (*cause == HangCause::asleep && any_stopped()) continue;
      const std::string line = line_of(*cause, *sight);
      if (verdict) verdict->details.push_back(line);
      else
        verdict = HangVerdict{.kind = text_of(*cause),
                              .restart = restart,
                              .own = *cause == HangCause::spinning,
                              .message = line,
                              .deadline_seconds = limits_.deadline_seconds(*cause, *sight)};
      verdict->ranks.push_back(rank);
    }
    if (verdict && !verdict->details.empty())
      verdict->message += fmt::format("; and {} more of the kind", verdict->details.size());
    return verdict;
  }

  bool any_stopped() const {
    return std::ranges::any_of(ranks_, [](const auto& entry) { return entry.second->process_state == 'T'; });
  }

  std::string line_of(HangCause cause, const RankSight& sight) const {
    const auto [what, tail] = missed_by(sight.rank);
    std::string line = place(sight);
    line += what.empty() ? " makes no progress" : what;
    line += fmt::format("; last seen in {}, {:.1f} s ago; {}", doing(sight), sight.beat_seconds,
                        evidence(cause, sight));
    return line + tail;
  }

  struct Missed {
    std::string what, tail;
  };
  /// The collective in which most ranks miss this rank, or the neighbours that may wait for its messages,
  /// with the names of the waiting ranks.
  Missed missed_by(std::int64_t rank) const {
    std::map<std::string, std::vector<const Wait*>> found;
    std::vector<const Wait*> neighbours;
    for (const auto& [other, wait] : waits_) {
      if (other == rank || std::ranges::find(wait.missing, rank) == wait.missing.end()) continue;
      (wait.message ? neighbours : found[wait.key()]).push_back(&wait);
    }
    const auto ranks_of = [](const std::vector<const Wait*>& waits) {
      std::vector<std::int64_t> ranks;
      for (const Wait* wait : waits) ranks.push_back(wait->rank->rank);
      return ranks;
    };
    if (!found.empty()) {
      const auto& most =
          std::ranges::max_element(found, {}, [](const auto& entry) { return entry.second.size(); })->second;
      const SeenOperation& op = *most.front()->op;
      return {fmt::format(" never entered {} of group {}", describe(op), op.group),
              fmt::format("; {} {} for it", names(ranks_of(most)), most.size() == 1 ? "waits" : "wait")};
    }
    if (neighbours.empty()) return {"", met_by(rank, ranks_, layout_, needs_)};
    const RankSight& first = *neighbours.front()->rank;
    return {"", fmt::format("; {}, next to it in the pipeline, {} in {}", names(ranks_of(neighbours)),
                            neighbours.size() == 1 ? std::string("waits for a message,")
                                                   : fmt::format("wait for messages, rank {}", first.rank),
                            doing(first))};
  }

  // ---- stuck: a collective that all members have entered

  std::optional<HangVerdict> stuck() const {
    for (const auto& [rank, wait] : waits_) {
      if (wait.message || !wait.complete || !wait.missing.empty() || !late(wait)) continue;
      std::set<std::int64_t> nodes;
      bool all = true;
      for (const std::int64_t member : wait.members->list()) {
        const auto other = waits_.find(member);
        nodes.insert(ranks_.at(member)->node);
        all = all && other != waits_.end() && !other->second.message && other->second.key() == wait.key() &&
              late(other->second);
      }
      if (!all) continue;
      const std::vector<std::int64_t> members = wait.members->list();
      const bool link = nodes.size() > 1;
      return HangVerdict{
          .kind = link ? "link" : "stuck",
          .own = !link && in_step(wait.rank->activity),
          .ranks = members,
          .message =
              fmt::format("{} of group {} does not advance, though {} have all entered it, {:.1f} s ago; {}",
                          describe(*wait.op), wait.op->group, names(members), wait.op->started_ago,
                          link ? fmt::format("the link between nodes {} is down or loses what is sent",
                                             fmt::join(nodes, ", "))
                               : std::string("they are all on one node")),
          .deadline_seconds = limits_.still_seconds(*wait.rank)};
    }
    return std::nullopt;
  }

  // ---- deadlock: ranks that wait for each other

  std::optional<HangVerdict> deadlock() const {
    for (const auto& [rank, wait] : waits_) {
      std::set<std::int64_t> circle;
      if (!closed(rank, circle)) continue;
      HangVerdict verdict{.kind = "deadlock",
                          .own = true,
                          .ranks = {circle.begin(), circle.end()},
                          .deadline_seconds = limits_.still_seconds(*waits_.at(rank).rank)};
      std::set<std::int64_t> nodes;
      for (const std::int64_t member : circle) {
        const Wait& w = waits_.at(member);
        nodes.insert(w.rank->node);
        verdict.own = verdict.own && in_step(w.rank->activity);
        verdict.details.push_back(
            w.message ? fmt::format("{} waits for a message of rank {}, in {}", place(*w.rank),
                                    fmt::join(w.missing, " or "), doing(*w.rank))
                      : fmt::format("{} waits for {} of group {}, in {}, for {}", place(*w.rank),
                                    describe(*w.op), w.op->group, doing(*w.rank), names(w.missing)));
      }
      verdict.own = verdict.own && nodes.size() == 1;
      verdict.message =
          fmt::format("{} wait for each other{}", names(verdict.ranks),
                      nodes.size() > 1 ? "; or a link between their nodes loses what is sent" : "");
      return verdict;
    }
    return std::nullopt;
  }

  /// True if `rank` and all ranks that it waits for, directly or not, wait too long for ranks that have been
  /// seen.
  bool closed(std::int64_t rank, std::set<std::int64_t>& circle) const {
    const auto found = waits_.find(rank);
    if (found == waits_.end()) return false;
    if (!circle.insert(rank).second) return true;
    const Wait& wait = found->second;
    if (!wait.complete || wait.missing.empty() || !late(wait)) return false;
    return std::ranges::all_of(wait.missing, [&](std::int64_t other) { return closed(other, circle); });
  }

  const parallel::Layout& layout_;
  const parallel::GroupNeeds& needs_;
  const HangLimits& limits_;
  bool several_nodes_ = false;
  std::map<std::int64_t, const RankSight*> ranks_;
  std::map<std::int64_t, Wait> waits_;
};

}  // namespace

std::string place_of(std::int64_t rank, std::int64_t node, bool several_nodes,
                     const parallel::Layout& layout) {
  std::vector<std::string> parts;
  if (several_nodes) parts.push_back("node " + std::to_string(node));
  for (const Axis axis : {Axis::tp, Axis::cp, Axis::ep, Axis::pp, Axis::dp})
    if (layout.size(axis) > 1)
      parts.push_back(fmt::format("{} {}", to_string(axis), layout.place(rank, axis)));
  const std::string name = "rank " + std::to_string(rank);
  return parts.empty() ? name : fmt::format("{} ({})", name, fmt::join(parts, ", "));
}

std::optional<HangVerdict> judge(std::span<const RankSight> sights, const parallel::Layout& layout,
                                 const parallel::GroupNeeds& needs, const HangLimits& limits) {
  if (!limits.on() || sights.empty()) return std::nullopt;
  return Judge(sights, layout, needs, limits).verdict();
}

}  // namespace trainerd::core::run
