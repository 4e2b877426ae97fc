#include <algorithm>
#include <utility>

#include "core/run/coordinator/coordinator.h"
#include "core/run/log/log.h"
#include "core/run/nodes/membership.h"
#include "io/text/text.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

// Part of the membership (membership.h): with a coordinator, who leads. At a start that is node 0's agent.
// When it is lost a spare takes the lead, and with it node 0's place; or node 0's agent, started again; or a
// node of an elastic job, which gives all of them new numbers. The others keep their numbers and join it.

namespace trainerd::core::run {
namespace {

constexpr double kAskSeconds = 0.5;   // between two questions to the coordinator, at the most
constexpr double kReachSeconds = 1;   // of one attempt to reach the leader
constexpr double kAfterSpares = 3;    // beats for which the nodes of an elastic job leave the lead to a spare
constexpr double kTurnSeconds = 0.1;  // by which each of them leaves it to the one before

}  // namespace

void Membership::lose_leader(const std::string& why) const {
  if (coordinated()) throw LeaderLost(why, node(), options_.spare);
  throw base::comm_error(why);
}

std::function<bool()> Membership::write_permit() const {
  if (!coordinated() || !leads()) return [] { return true; };
  return [coordinator = options_.lead.coordinator] { return coordinator->leads(); };
}

bool Membership::may_lead(double vacant_seconds) const {
  if (node() == 0 && !options_.spare) return true;
  if (options_.lead.lost.empty()) return false;
  if (options_.spare) return true;
  const double spares = max_spares_ > 0 ? kAfterSpares * beat_seconds_ : 0;
  return elastic_ && vacant_seconds >= spares + kTurnSeconds * static_cast<double>(node());
}

void Membership::meet_by_coordinator(const job::JobSpec& job, int signal_fd) {
  Coordinator& coordinator = *options_.lead.coordinator;
  if (!options_.rendezvous.host.empty()) check_own_address();
  const bool rejoins = !options_.lead.lost.empty();
  const double patience = rejoins ? options_.lead.wait_seconds : options_.timeout_seconds;
  const double begin = base::monotonic_seconds();
  const MembershipOptions given = options_;
  double vacant_since = begin;
  bool told_silent = false;
  std::string told;
  log::info("{} asks {} who leads", options_.spare ? "a spare" : "node " + std::to_string(node()),
            coordinator.name());
  for (;;) {
    std::string why;
    bool joined = false, claimed = false;
    try {
      const std::optional<LeadRecord> leader = coordinator.leader();
      if (std::exchange(told_silent, false)) log::info("{} answers", coordinator.name());
      if (leader) {
        vacant_since = base::monotonic_seconds();
        joined = join_leader(*leader, job, given.token, why);
      } else if (may_lead(base::monotonic_seconds() - vacant_since)) {
        claimed = coordinator.claim(this_host());
      } else {
        why = "nobody leads: start the agent of node 0" + std::string(rejoins ? " again, or a spare's" : "");
      }
      if (!why.empty() && why != told) log::info("{}", why);
      told = why;
    } catch (const base::CommError& error) {
      why = "supervise.coordinator: " + std::string(error.what());
      if (!std::exchange(told_silent, true)) log::warn("{}", why);
    }
    if (joined) return await_go(signal_fd);
    if (claimed) return lead(job, signal_fd);
    // What an attempt to join has changed.
    options_ = given;
    members_[0].channel.reset();
    if (base::monotonic_seconds() - begin > patience)
      throw base::comm_error((rejoins ? options_.lead.lost + "; no" : "no") +
                             std::string(" agent that leads was found within ") +
                             io::duration_text(patience) +
                             (rejoins ? " (checkpoint.partner.wait): " : " (--rendezvous-timeout): ") + why);
    if (stops_waiting(signal_fd, std::min(kAskSeconds, beat_seconds_))) return;
  }
}

/// Another host's would be given to the others as this one's.
void Membership::check_own_address() const {
  try {
    base::own_address(options_.rendezvous.host);
  } catch (const base::CommError& error) {
    throw base::spec_error(
        "--rendezvous: with supervise.coordinator it is where this agent serves when it leads, and " +
        options_.rendezvous.host + " is none of this host's addresses (" + error.what() +
        "): leave it out, or give each agent its own host's");
  }
}

/// One attempt to join the agent that leads. Node 0's agent, where another leads, waits as a spare.
bool Membership::join_leader(const LeadRecord& leader, const job::JobSpec& job,
                             const std::optional<parallel::JobToken>& given, std::string& why) {
  const std::string who = leader.host + " has the lead";
  const auto address = base::parse_endpoint(leader.address);
  if (!address) {
    why = who + ", and does not serve the rendezvous yet";
    return false;
  }
  options_.rendezvous = *address;
  if (node() == 0 && !options_.spare) {
    options_.spare = true;
    options_.nodes.node = nodes();
  }
  if (!options_.spare) members_[static_cast<std::size_t>(node())].host = this_host();
  members_[0].host = leader.host;
  std::string problem;
  if (try_to_join(hello_of(job), given, kReachSeconds, problem) == Reached::joined) {
    log::info("{} joins node 0 ({}) at {}", options_.spare ? "a spare" : "node " + std::to_string(node()),
              leader.host, leader.address);
    return true;
  }
  why = who + ", and cannot be reached at " + leader.address + ": " + problem;
  return false;
}

/// The rendezvous: with a coordinator at this agent's own address, which becomes `options_.rendezvous`.
base::UniqueFd Membership::listen() {
  if (!coordinated()) return base::listen_at(options_.rendezvous);
  options_.spare = false;
  options_.nodes.node = 0;
  members_[0].host = this_host();
  takes_over_ = !options_.lead.lost.empty();
  if (options_.rendezvous.host.empty())
    options_.rendezvous = {options_.interface.empty() ? options_.lead.coordinator->own_address()
                                                      : base::own_address(options_.interface),
                           0};
  base::UniqueFd listener = base::listen_at(options_.rendezvous);
  options_.rendezvous.port = base::local_port(listener.get());
  return listener;
}

/// An agent joins that has lost another leader.
void Membership::take_over(const Hello& hello) {
  if (hello.lost.empty()) return;
  // A spare does not know of the run's steps.
  if (!takes_over_ || !hello.spare) options_.lead.lost = hello.lost;
  takes_over_ = true;
  for (const auto& [step, next] : hello.folders)
    options_.lead.folders[step] = std::max(options_.lead.folders[step], next);
}

/// Nodes that have not come were lost with the leader before: spares take their places, or an elastic run
/// goes on without.
void Membership::fill_places() {
  std::int64_t there = 1;
  for (std::int64_t node = 1; node < nodes(); ++node)
    if (members_[static_cast<std::size_t>(node)].channel || (!expected_.contains(node) && expect(node)))
      ++there;
  if (there == nodes() || !elastic_) return;
  const std::int64_t size = options_.lead.size_of(there);
  if (size == 0 || size == nodes()) return;
  log::info("of {} nodes {} have come: the run goes on with {}", nodes(), there, size);
  resize(size, 1);
}

void Membership::receive_news(std::vector<Event>& events) {
  if (!coordinated()) return;
  for (Coordinator::News& news : options_.lead.coordinator->take())
    events.push_back({.what = news.lead_lost ? Event::What::lead_lost : Event::What::coordinator,
                      .text = std::move(news.text)});
}

void Membership::abandon() {
  finished_ = true;
  beats_.reset();
  for (Member& member : members_) member.channel.reset();
  spares_.clear();
  late_.clear();
}

}  // namespace trainerd::core::run
