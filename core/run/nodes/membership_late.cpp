#include <algorithm>

#include "core/run/log/log.h"
#include "core/run/nodes/membership.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

// Part of the membership (membership.h): agents that join a running job, spares, and the choice of an agent
// for a lost node's place.

namespace trainerd::core::run {
namespace {

// Time beyond twice `supervise.dead_after` for which an agent with a taken number waits.
constexpr double kLateSeconds = 2;

}  // namespace

std::string Membership::who_is(const Hello& hello, const std::string& from) {
  return (hello.spare ? "the spare (" : "node " + std::to_string(hello.node) + " (") + hello.host + ", " +
         from + ")";
}

/// True if one more spare fits: `spares` plus the nodes that a smaller run leaves out. A leader that takes
/// the run over only knows its free places after it has met the others (`turn_surplus_away`).
bool Membership::has_room() const {
  if (meets_ && coordinated()) return true;
  return std::cmp_less(spares_.size(), max_spares_ + job_nodes_ - nodes());
}

/// Gives a lost node's place to an agent that may take any place, if one is free; else it waits as a spare.
void Membership::admit_spare(Member member, const std::string& who, std::vector<Event>& events) {
  if (!expected_.empty()) {
    const std::int64_t node = *expected_.begin();
    member.channel->send(encode(NodeMessage{TakePlace{node}}));
    expected_.erase(node);
    members_[static_cast<std::size_t>(node)] = std::move(member);
    events.push_back({.what = Event::What::returned,
                      .node = node,
                      .text = who + " takes the place of node " + std::to_string(node)});
    return;
  }
  if (!has_room()) {
    turn_away(member, who,
              "the job has as many spares as cluster.failures.spares says (" + std::to_string(max_spares_) +
                  "), and all nodes");
    return;
  }
  events.push_back({.what = Event::What::spares, .text = who + " waits as a spare"});
  spares_.push_back(std::move(member));
}

/// Turns spares away that joined while the leader met the others, and for which there is no place.
void Membership::turn_surplus_away() {
  while (!spares_.empty() && std::cmp_greater(spares_.size(), max_spares_ + job_nodes_ - nodes())) {
    turn_away(spares_.back(), "the spare on " + spares_.back().host,
              "the job has as many spares as cluster.failures.spares says (" + std::to_string(max_spares_) +
                  "), and all nodes");
    spares_.pop_back();
  }
}

/// Sends an agent the reason why it cannot join the run.
bool Membership::turn_away(Member& member, const std::string& who, const std::string& why) {
  log::warn("{} wants to join the job: it is turned away: {}", who, why);
  part_with(member, why);
  return false;
}

/// Handles agents that join a running job. An agent with a lost node's number is admitted. One with a present
/// node's number waits for a while, because that node's loss may not have been noticed yet.
void Membership::meet_late(std::vector<Event>& events) {
  while (auto joined = server_->take_joined()) {
    const std::string from = base::peer_address(joined->socket.get());
    try {
      if (const auto beats = decode_beat_hello(joined->text)) {
        admit_beats(*beats, std::move(joined->socket));
        continue;
      }
      const Hello hello = decode_hello(joined->text);
      base::watch_peer(joined->socket.get(), kAgentMessageSeconds);
      Member member{hello.host, Channel(std::move(joined->socket)), hello.isa, hello.agent};
      const std::string who = who_is(hello, from);
      const bool may_wait = admits_late_ || max_spares_ > 0 || elastic_;
      std::string why =
          may_wait ? objection(hello, who)
                   : "the job runs already, with a node of each number; end it before it is started again";
      if (why.empty() && hello.isa < go_.isa)
        why = "the job runs with " + std::string(to_string(go_.isa)) + " kernels, and this host has " +
              to_string(hello.isa) + " at the most";
      if (!why.empty()) {
        turn_away(member, who, why);
      } else if (!hello.spare && nodes() < job_nodes_) {
        // Its number may belong to another node by now.
        member.channel->send(encode(NodeMessage{WaitAsSpare{}}));
        admit_spare(std::move(member), who, events);
      } else if (hello.spare) {
        admit_spare(std::move(member), who, events);
      } else if (!expected_.empty() && !expected_.contains(hello.node)) {
        // Another agent, for example a spare, has its number.
        admit_spare(std::move(member), who, events);
      } else if (expected_.erase(hello.node) > 0) {
        members_[static_cast<std::size_t>(hello.node)] = std::move(member);
        events.push_back({.what = Event::What::returned, .node = hello.node});
      } else {
        log::info("{} has come, and the run has a node of that number: it waits until that is lost", who);
        late_.push_back(
            {hello.node, std::move(member), base::monotonic_seconds() + 2 * dead_seconds_ + kLateSeconds});
      }
    } catch (const base::CommError& error) {  // it is no agent, or it has gone
      log::warn("the rendezvous dropped {}: {}", from, error.what());
    }
  }
}

/// Ends the waits of agents with a taken number: if that node is not lost after all, the agent becomes a
/// spare if there is room, else it is turned away.
void Membership::end_waits(std::vector<Event>& events) {
  const double now = base::monotonic_seconds();
  for (std::size_t i = 0; i < late_.size();) {
    if (late_[i].until > now) {
      ++i;
      continue;
    }
    Late late = std::move(late_[i]);
    late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(i));
    const std::string who = "an agent with the number of " + name_of(late.node) + ", on " + late.member.host;
    if (!expected_.empty() || has_room()) {
      try {
        late.member.channel->send(encode(NodeMessage{WaitAsSpare{}}));
        admit_spare(std::move(late.member), who, events);
      } catch (const base::CommError&) {  // it has gone
      }
    } else {
      turn_away(late.member, who,
                "the job runs already, with a node of each number; end it before it is started again");
    }
  }
}

bool Membership::expect(std::int64_t node) {
  const auto take = [&](Member member) {
    members_[static_cast<std::size_t>(node)] = std::move(member);
    return true;
  };
  for (std::size_t i = 0; i < late_.size(); ++i)
    if (late_[i].node == node) {
      Member member = std::move(late_[i].member);
      late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(i));
      return take(std::move(member));
    }
  while (!spares_.empty()) {
    Member spare = std::move(spares_.front());
    spares_.erase(spares_.begin());
    try {
      spare.channel->send(encode(NodeMessage{TakePlace{node}}));
      return take(std::move(spare));
    } catch (const base::CommError&) {  // it has gone
      part_with(spare, "");
    }
  }
  expected_.insert(node);
  return false;
}

std::optional<double> Membership::due_seconds() const {
  std::optional<double> first;
  for (const Late& late : late_) first = std::min(first.value_or(late.until), late.until);
  if (link_is_dropped()) first = std::min(first.value_or(link_back_at_), link_back_at_);
  if (first) *first = std::max(0.0, *first - base::monotonic_seconds());
  return first;
}

void Membership::await_resize(int signal_fd) {
  log::info("the run goes on from its newest state, with the nodes that node 0 names: waiting for it");
  await_go(signal_fd, true);
}

void Membership::resize(std::int64_t count, std::int64_t attempt, const std::string& layout) {
  std::vector<Member> all;
  for (std::size_t node = 0; node < members_.size(); ++node)
    if (node == 0 || members_[node].channel) all.push_back(std::move(members_[node]));
  const std::size_t were_nodes = all.size();
  for (Member& spare : spares_) all.push_back(std::move(spare));
  members_.clear();
  spares_.clear();
  expected_.clear();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool is_node = std::cmp_less(i, count);
    try {
      if (is_node && i > 0)
        all[i].channel->send(encode(NodeMessage{TakePlace{static_cast<std::int64_t>(i)}}));
      if (!is_node && i < were_nodes) all[i].channel->send(encode(NodeMessage{WaitAsSpare{}}));
    } catch (const base::CommError&) {
      // The read loop handles the closed connection.
    }
    (is_node ? members_ : spares_).push_back(std::move(all[i]));
  }
  options_.nodes.nodes = count;
  // The other fields, such as step and held snapshots, are of the previous size.
  go_ = {.run = go_.run, .isa = go_.isa, .attempt = attempt, .layout = layout};
}

}  // namespace trainerd::core::run
