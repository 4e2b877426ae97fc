#include <algorithm>
#include <cerrno>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <utility>

#include "core/run/coordinator/coordinator.h"
#include "core/run/coordinator/lead_mark.h"
#include "core/run/log/log.h"
#include "core/run/nodes/membership.h"
#include "io/storage/file_errors.h"
#include "io/text/text.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

// Part of the membership (membership.h): the choice of a leader with a coordinator. At the start node 0's
// agent leads. When it is lost, the next leader is a spare, which takes node 0's place; or node 0's agent,
// started again; or a node of an elastic job, which renumbers all nodes. The other agents keep their numbers
// and join the leader.

namespace trainerd::core::run {
namespace {

// Time beyond `supervise.dead_after` for agents to notice a leader's loss, end their ranks and look for the
// next leader.
constexpr double kNoticeSeconds = 3;
// Upper bound on a lease's time beyond `supervise.dead_after`, because etcd uses whole seconds.
constexpr double kLeaseSeconds = 2;
// Time limit for the leader to answer a joining agent. A frozen leader does not answer.
constexpr double kMinAnswerSeconds = 2, kMaxAnswerSeconds = 10;
constexpr double kAnswerSeconds = 30;  // without a coordinator
constexpr double kAskSeconds = 0.5;    // maximum time between two requests to the coordinator
constexpr double kYieldSeconds = 1;    // time that an agent which failed to lead waits before it tries again
constexpr double kReachSeconds = 1;    // time limit of one try to reach the leader
constexpr double kAfterSpares = 3;     // beats that an elastic job's nodes wait for a spare to lead
constexpr double kTurnSeconds = 0.1;   // additional wait per node number, so that lower numbers go first

}  // namespace

void Membership::lose_leader(const std::string& why) const {
  const auto mark = LeadMark::parse(go_.run);
  if (coordinated()) throw LeaderLost(why, node(), options_.spare, mark ? mark->epoch : joined_epoch_);
  throw base::comm_error(why);
}

std::function<bool()> Membership::write_permit() const {
  if (!coordinated() || !leads()) return [] { return true; };
  return [coordinator = options_.lead.coordinator] { return coordinator->leads(); };
}

std::function<void()> Membership::write_guard() const {
  if (!coordinated() || !leads()) return [] {};
  return [coordinator = options_.lead.coordinator, text = lead_lost_text()] {
    if (!coordinator->leads()) throw LeadLost(text);
  };
}

std::function<void()> Membership::storage_guard() const {
  if (leads() || !beats_) return write_guard();
  return
      [counted_on = beats_->counted_on(), leader = name_of(0), seconds = io::duration_text(dead_seconds_)] {
        if (!counted_on())
          throw io::StorageError("this node has received no heartbeat of " + leader + " for " + seconds +
                                     " (supervise.dead_after) and may count as lost: nothing is written",
                                 ETIMEDOUT);
      };
}

std::string Membership::lead_lost_text(const std::string& why) const {
  std::ostringstream lease;
  lease << "the lease of this agent's lead was not renewed for " << std::fixed << std::setprecision(1)
        << dead_seconds_ << " s (supervise.dead_after)";
  return name_of(0) + " does not lead the run any more: " + (why.empty() ? lease.str() : why);
}

/// Time from a leader's loss until the last agent has noticed it and looks for the next leader.
double Membership::notice_seconds() const { return std::ceil(dead_seconds_) + kNoticeSeconds; }

double Membership::answer_seconds() const {
  return coordinated() ? std::clamp(dead_seconds_, kMinAnswerSeconds, kMaxAnswerSeconds) : kAnswerSeconds;
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
  const double patience = rejoins ? options_.lead.wait_seconds + notice_seconds() : options_.timeout_seconds;
  const double begin = base::monotonic_seconds();
  const MembershipOptions given = options_;
  double vacant_since = begin;
  bool reported_silent = false;
  std::string reported;
  log::info("{} asks {} who leads", options_.spare ? "a spare" : "node " + std::to_string(node()),
            coordinator.name());
  for (;;) {
    std::string why;
    bool joined = false, claimed = false;
    try {
      const std::optional<LeadRecord> leader = coordinator.leader();
      if (std::exchange(reported_silent, false)) log::info("{} answers", coordinator.name());
      // A lost leader's address stays published until its lease ends.
      const bool is_lost = leader && leader->epoch == options_.lead.lost_epoch &&
                           base::monotonic_seconds() - begin < std::ceil(dead_seconds_) + kLeaseSeconds;
      if (leader) vacant_since = base::monotonic_seconds();
      if (is_lost) {
        why = leader->host + " has the lead still, until its lease is over";
      } else if (leader) {
        joined = join_leader(*leader, job, given.token, why);
      } else if (may_lead(base::monotonic_seconds() - vacant_since)) {
        claimed = coordinator.claim(this_host());
      } else {
        why = "no agent leads: start the agent of node 0" + std::string(rejoins ? " again" : "");
      }
      if (!why.empty() && why != reported) log::info("{}", why);
      reported = why;
    } catch (const base::CommError& error) {
      why = "supervise.coordinator: " + std::string(error.what());
      if (!std::exchange(reported_silent, true)) log::warn("{}", why);
    }
    if (joined) return await_go(signal_fd);
    if (claimed && lead_if_possible(job, signal_fd, why)) return;
    if (claimed && std::exchange(reported, why) != why) log::warn("{}", why);
    begin_again(given);
    if (base::monotonic_seconds() - begin > patience)
      throw base::comm_error(
          (rejoins ? options_.lead.lost + "; no" : "no") +
          std::string(" agent that leads was found within ") +
          io::duration_text(rejoins ? options_.lead.wait_seconds : patience) +
          (rejoins ? " (checkpoint.partner.wait) of the end of its lease: " : " (--rendezvous-timeout): ") +
          why);
    // Another agent may be able to lead where this one failed.
    if (stops_waiting(signal_fd, claimed ? kYieldSeconds : std::min(kAskSeconds, beat_seconds_))) return;
  }
}

/// Leads if it can. Returns false, with `why`, if it failed and gave the lead up; an agent that replaces a
/// lost leader then tries again. Any other agent throws the error.
bool Membership::lead_if_possible(const job::JobSpec& job, int signal_fd, std::string& why) {
  try {
    lead(job, signal_fd);
    return true;
  } catch (const base::CommError& error) {
    // If `finished_`, the others have received the error.
    if (finished_ || options_.lead.lost.empty()) throw;
    options_.lead.coordinator->resign();
    why = error.what();
    return false;
  }
}

/// Undoes the changes of a failed try to join or to lead.
void Membership::begin_again(const MembershipOptions& given) {
  options_ = given;
  for (Member& member : members_) part_with(member, "");
  for (Member& spare : spares_) part_with(spare, "");
  for (Late& late : late_) part_with(late.member, "");
  spares_.clear();
  late_.clear();
  ghosts_.clear();
  expected_.clear();
  members_.clear();
  members_.resize(static_cast<std::size_t>(nodes()));
  if (!options_.spare) members_[static_cast<std::size_t>(node())].host = this_host();
  server_.reset();
  token_file_.reset();
  takes_over_ = meets_ = false;
  go_ = {};
}

/// Throws SpecError if the given rendezvous address is not of this host: it would be published as this
/// host's.
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

/// Tries once to join the leader. Node 0's agent waits as a spare if another agent leads.
bool Membership::join_leader(const LeadRecord& leader, const job::JobSpec& job,
                             const std::optional<parallel::JobToken>& given, std::string& why) {
  const std::string who = leader.host + " has the lead";
  const auto address = base::parse_endpoint(leader.address);
  if (!address) {
    why = who + ", and does not serve the rendezvous yet";
    return false;
  }
  options_.rendezvous = *address;
  joined_epoch_ = leader.epoch;
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

/// Opens the rendezvous. With a coordinator it uses this agent's own address and sets `options_.rendezvous`.
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
  if (nodes() > 1 && base::is_loopback(options_.rendezvous.host))
    log::warn(
        "this agent leads, and agents of other hosts cannot reach it at {}: name the network with "
        "--interface, or its address with --rendezvous, unless all nodes are on this host",
        options_.rendezvous.host);
  base::UniqueFd listener = base::listen_at(options_.rendezvous);
  options_.rendezvous.port = base::local_port(listener.get());
  return listener;
}

/// Merges the knowledge of a joining agent that has lost another leader.
void Membership::take_over(const Hello& hello) {
  if (hello.lost.empty()) return;
  // A spare does not know the run's steps.
  if (!takes_over_ || !hello.spare) options_.lead.lost = hello.lost;
  takes_over_ = true;
  for (const auto& [step, next] : hello.folders)
    options_.lead.folders[step] = std::max(options_.lead.folders[step], next);
  std::vector<std::string>& done = options_.lead.faults_done;
  for (const std::string& fault : hello.faults_done)
    if (std::find(done.begin(), done.end(), fault) == done.end()) done.push_back(fault);
}

/// Nodes that have not joined were lost with the previous leader: spares take their places, or an elastic run
/// continues without them.
void Membership::fill_places() {
  std::int64_t there = 1;
  for (std::int64_t node = 1; node < nodes(); ++node)
    if (members_[static_cast<std::size_t>(node)].channel || (!expected_.contains(node) && expect(node)))
      ++there;
  if (there == nodes() || !elastic_) return;
  const LeadOptions::Size size = options_.lead.size_of(there);
  if (size.nodes == 0 || size.nodes == nodes()) return;
  log::info("{} of {} nodes came: the run goes on with {}", there, nodes(), size.nodes);
  resize(size.nodes, 1, size.layout);
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
