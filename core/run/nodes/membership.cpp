#include "core/run/nodes/membership.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "core/run/log/log.h"
#include "core/spec/spec.h"
#include "io/storage/storage.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/seconds_text.h"

namespace trainerd::core::run {
namespace {

// Time limit for the other nodes to receive the last message.
constexpr double kFarewellSeconds = 2;

}  // namespace

int poll_timeout(double deadline) {
  return static_cast<int>(std::clamp(1e3 * (deadline - base::monotonic_seconds()) + 1, 0.0, 1e8));
}

std::string silence_text(double seconds) {
  return "has sent no heartbeat for " + base::one_decimal(seconds) +
         " s (supervise.dead_after): its agent is stopped, its host is frozen, or the link to it is cut";
}

std::string shared_job(job::JobSpec job) {
  job.data.train.clear();
  for (io::DataSource& source : job.data.sources) source.path.clear(), source.mask.clear();
  job.data.valid.clear();
  job.data.mask.clear();
  job.data.valid_mask.clear();
  for (io::ValidationSet& set : job.data.valid_sets) set.path.clear(), set.mask.clear();
  job.data.cache_directory.clear();
  for (job::ChoiceSet& set : job.evaluate.choices) set.path.clear();
  job.evaluate.tokenizer.clear();
  return spec::to_yaml(job);
}

End end_by(const std::exception& error) {
  if (const auto* known = dynamic_cast<const base::Error*>(&error))
    return {.failed = true, .kind = known->kind(), .message = known->what()};
  return {.failed = true,
          .kind = base::ErrorKind::device,
          .message = std::string("internal error: ") + error.what()};
}

Membership::Membership(const MembershipOptions& options, const job::JobSpec& job, int signal_fd)
    : options_(options),
      output_(io::local_path(job.output)),
      max_spares_(job.cluster.spares),
      job_nodes_(options.nodes.nodes),
      elastic_(job.cluster.elastic),
      beat_seconds_(job.supervise.heartbeat_seconds),
      dead_seconds_(job.supervise.dead_after_seconds) {
  if (!alone())
    beats_ = std::make_unique<Heartbeats>(
        BeatOptions{job.supervise.heartbeat_seconds, job.supervise.dead_after_seconds});
  members_.resize(static_cast<std::size_t>(nodes()));
  // With a coordinator a node may run on any host.
  for (std::size_t node = 0; !coordinated() && node < members_.size() && node < options_.nodes.hosts.size();
       ++node)
    members_[node].host = options_.nodes.hosts[node];
  if (coordinated()) meet_by_coordinator(job, signal_fd);
  else if (leads()) lead(job, signal_fd);
  else follow(job, signal_fd);
}

Membership::~Membership() = default;

std::string Membership::name_of(std::int64_t node) const {
  const std::string host = host_of(node);
  return "node " + std::to_string(node) + (host.empty() ? "" : " (" + host + ")");
}

std::string Membership::host_of(std::int64_t node) const {
  return node < static_cast<std::int64_t>(members_.size()) ? members_[static_cast<std::size_t>(node)].host
                                                           : "";
}

void Membership::begin(Go go) {
  require_lead();
  go.run = go_.run;
  go.isa = go_.isa;
  go.nodes = nodes();
  go.layout = go_.layout;
  go.wall_seconds = base::wall_seconds();
  go_ = std::move(go);
  // If the directory was moved aside, the token file was moved with it.
  if (leaves_token_ && (!token_file_ || !TokenFile::read(output_)))
    token_file_.emplace(output_, *options_.token);
  if (!alone()) send(go_);
}

// ---- rendezvous of the workers

base::Endpoint Membership::store() const {
  // The leader's own host may not be able to resolve the name that others use.
  return leads() ? server_->local_endpoint() : options_.rendezvous;
}

std::string Membership::interface() const {
  if (!options_.interface.empty()) return options_.interface;
  std::string address = "127.0.0.1";
  for (const Member& member : members_) {
    if (!member.channel) continue;
    address = base::local_address(member.channel->fd());
    if (!base::is_loopback(address)) break;
  }
  return address;
}

// ---- messages

void Membership::watch(std::vector<pollfd>& fds) const {
  const std::lock_guard lock(in_use_);
  fds.push_back({leads() && coordinated() ? options_.lead.coordinator->event_fd() : -1, POLLIN, 0});
  fds.push_back({server_ ? server_->event_fd() : -1, POLLIN, 0});
  fds.push_back({beats_ ? beats_->event_fd() : -1, POLLIN, 0});
  const bool link = !link_is_dropped();
  const auto add = [&](const Member& member) {
    fds.push_back({link && member.channel ? member.channel->fd() : -1, POLLIN, 0});
  };
  for (const Member& member : members_) add(member);
  for (const Member& spare : spares_) add(spare);
  for (const Channel& ghost : ghosts_) fds.push_back({ghost.fd(), POLLIN, 0});
  if (beats_) beats_->loop_waits();
}

void Membership::works() {
  const std::lock_guard lock(in_use_);
  if (beats_) beats_->loop_works();
}

std::vector<Membership::Event> Membership::take(std::span<const pollfd> fds) {
  const std::lock_guard lock(in_use_);
  if (finished_ && leads()) return {};
  if (!link_is_dropped()) restore_link();
  std::vector<Event> events = receive(fds.subspan(2));
  if (fds[0].revents != 0) receive_news(events);
  if (fds[1].revents != 0) meet_late(events);
  end_waits(events);
  return events;
}

std::vector<Membership::Event> Membership::receive(std::span<const pollfd> fds) {
  if (beats_) beats_->loop_works();
  std::vector<Event> events;
  const std::span<const pollfd> of_members = fds.subspan(1, members_.size()),
                                of_spares = fds.subspan(1 + members_.size(), spares_.size()),
                                of_ghosts = fds.subspan(1 + members_.size() + spares_.size());
  for (std::size_t node = 0; node < members_.size(); ++node) {
    if (of_members[node].revents == 0 || !members_[node].channel) continue;
    Event event{.node = static_cast<std::int64_t>(node)};
    try {
      if (const auto text = members_[node].channel->receive()) event.message = decode_node_message(*text);
    } catch (const base::CommError& error) {
      log::error("{}: {}", name_of(event.node), error.what());
    }
    if (!event.message) {
      event.what = Event::What::lost;
      ++lost_;
      event.text = "its agent has ended or its host is out of reach";
      part_with(members_[node], "");
    }
    if (const auto* end = event.message ? std::get_if<End>(&*event.message) : nullptr;
        end != nullptr && !leads()) {
      end_ = *end;
      finished_ = true;
      if (!end->failed && beats_) beats_->peer_has_ended();
    }
    events.push_back(std::move(event));
  }
  for (std::size_t i = of_spares.size(); i-- > 0;)
    if (of_spares[i].revents != 0) receive_from_spare(i, events);
  for (std::size_t i = of_ghosts.size(); i-- > 0;) {
    std::array<char, 4096> discarded;
    if (of_ghosts[i].revents != 0 &&
        ::recv(of_ghosts[i].fd, discarded.data(), discarded.size(), MSG_DONTWAIT) <= 0)
      ghosts_.erase(ghosts_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (fds[0].revents != 0) receive_reports(events);
  return events;
}

/// A spare sends nothing. If it was a node until now, it may have sent messages before it knew.
void Membership::receive_from_spare(std::size_t i, std::vector<Event>& events) {
  const std::string who = "the spare on " + spares_[i].host;
  try {
    if (const auto text = spares_[i].channel->receive()) {
      NodeMessage message = decode_node_message(*text);
      if (std::holds_alternative<StopAsked>(message))
        events.push_back({.what = Event::What::stop, .message = std::move(message), .text = who});
      return;
    }
  } catch (const base::CommError& error) {
    log::error("{}: {}", who, error.what());
  }
  events.push_back({.what = Event::What::spares, .text = who + " has left"});
  part_with(spares_[i], "");
  spares_.erase(spares_.begin() + static_cast<std::ptrdiff_t>(i));
}

/// Handles the heartbeat reports.
void Membership::receive_reports(std::vector<Event>& events) {
  for (const Heartbeats::Report& report : beats_->take()) {
    Member* member = member_of_beats(report.peer);
    if (member == nullptr) continue;
    const bool silent = report.what == Heartbeats::Report::What::silent;
    const std::int64_t index = member - members_.data();
    const bool is_node = index >= 0 && std::cmp_less(index, members_.size());
    if (silent && !is_node) {
      events.push_back({.what = Event::What::spares,
                        .text = "the spare on " + member->host + " " + silence_text(report.seconds)});
      part_with(
          *member,
          "this spare sent no heartbeat for " + base::one_decimal(report.seconds) + " s and is given up",
          true);
      std::erase_if(spares_, [](const Member& spare) { return !spare.channel; });
      std::erase_if(late_, [](const Late& late) { return !late.member.channel; });
    } else if (is_node) {
      events.push_back({.what = silent ? Event::What::lost : Event::What::busy,
                        .node = index,
                        .text = silent ? "it " + silence_text(report.seconds) : "",
                        .seconds = report.seconds});
      if (!silent) continue;
      ++lost_;
      part_with(*member,
                name_of(index) + " sent no heartbeat for " + base::one_decimal(report.seconds) +
                    " s and counts as lost: the run goes on without this agent",
                true);
    }
  }
}

Membership::Member* Membership::member_of_beats(std::int64_t beats) {
  for (Member& member : members_)
    if (member.beats == beats) return &member;
  for (Member& spare : spares_)
    if (spare.beats == beats) return &spare;
  for (Late& late : late_)
    if (late.member.beats == beats) return &late.member;
  return nullptr;
}

/// Ends the connection to an agent. It reads `why`, if there is one, when it can: a process that was stopped
/// must learn that it is none of the run's any more.
void Membership::part_with(Member& member, const std::string& why, bool excludes) {
  if (beats_ && member.beats != 0) beats_->remove(member.beats);
  member.beats = 0;
  if (member.channel && !why.empty() && leads() && !link_is_dropped()) {
    const int fd = member.channel->fd();
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    try {
      member.channel->send(encode(NodeMessage{
          End{.failed = true, .kind = base::ErrorKind::comm, .message = why, .excludes = excludes}}));
      ::shutdown(fd, SHUT_WR);
      ghosts_.push_back(std::move(*member.channel));
    } catch (const base::CommError&) {  // the other end is closed or its buffer is full
    }
  }
  member.channel.reset();
}

void Membership::send(const NodeMessage& message) {
  const std::lock_guard lock(in_use_);
  send_message(message);
}

void Membership::send_message(const NodeMessage& message) {
  const std::string text = encode(message);
  // An injected fault must be recorded before it happens, or it would happen again. So it passes a dropped
  // link.
  const bool passes = std::holds_alternative<FaultInjected>(message);
  if (!passes && link_is_dropped()) return held_back_.push_back(text);
  if (!passes && !held_back_.empty()) restore_link();
  send(text);
}

void Membership::send(const std::string& text) {
  for (Member& member : members_) {
    if (!member.channel) continue;
    try {
      member.channel->send(text);
    } catch (const base::CommError&) {
      // The read loop handles the closed connection.
    }
  }
}

void Membership::stop_early(const StopRequest& stop, const LeaveProcess& leave) {
  const std::lock_guard lock(in_use_);
  // The leader may be busy, too: it learns of the stop before it misses this node.
  if (leads()) finish({.stop_signal = stop.exit_signal});
  else send_message(StopAsked{stop});
  leave(stop);
}

// Closing a connection with unread bytes can discard the last sent message. So this reads until the other
// side has closed.
void Membership::finish(const End& end) {
  end_ = end;
  if (finished_) return;
  if (lead_is_lost()) return abandon();
  finished_ = true;
  for (Member& spare : spares_) members_.push_back(std::move(spare));
  for (Late& late : late_) members_.push_back(std::move(late.member));
  spares_.clear();
  late_.clear();
  beats_.reset();
  if (link_is_dropped()) return members_.clear();
  if (!held_back_.empty()) restore_link();
  if (leads()) send_message(end);
  else if (end.failed) send_message(NodeFailed{end.kind, end.message, 2});
  const double deadline = base::monotonic_seconds() + kFarewellSeconds;
  for (Member& member : members_)
    if (member.channel) ::shutdown(member.channel->fd(), SHUT_WR);
  for (Member& member : members_) {
    std::array<char, 4096> discarded;
    while (member.channel) {
      pollfd p{member.channel->fd(), POLLIN, 0};
      if (::poll(&p, 1, poll_timeout(deadline)) <= 0 ||
          ::recv(p.fd, discarded.data(), discarded.size(), 0) <= 0)
        member.channel.reset();
    }
  }
}

}  // namespace trainerd::core::run
