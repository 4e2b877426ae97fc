#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <sstream>

#include "core/run/coordinator/lead_mark.h"
#include "core/run/log/log.h"
#include "core/run/nodes/membership.h"
#include "core/run/stop/early_stop.h"
#include "core/version/version.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

// Part of the membership (membership.h): how the agents join, before a run begins and during it.

namespace trainerd::core::run {
namespace {

constexpr double kRetrySeconds = 0.1;
// If the leader's token is not there by then, it may have been left in another directory.
constexpr double kTokenSeconds = 5;
// Time limit of one try to reach the leader; signals are read between two tries.
constexpr double kJoinSeconds = 1;
// Time limit for an agent that has met the leader to open its second connection, for heartbeats.
constexpr double kBeatsSeconds = 15;

std::string random_name() {
  std::random_device random;
  std::ostringstream text;
  text << std::hex << random() << random();
  return text.str();
}

/// The first line in which two resolved jobs differ, for error messages.
std::string first_difference(const std::string& here, const std::string& there) {
  std::istringstream a(here), b(there);
  std::string x, y;
  for (;;) {
    const bool more_a = static_cast<bool>(std::getline(a, x)), more_b = static_cast<bool>(std::getline(b, y));
    if (!more_a && !more_b) return "";
    if (!more_a) x = "(the end)";
    if (!more_b) y = "(the end)";
    if (x != y) return "'" + y + "' there, '" + x + "' at node 0";
  }
}

kernels::Isa isa_here(const job::JobSpec& job) { return kernels::detect_cpu(1, job::most_isa(job)).isa; }

std::string seconds_text(double seconds) {
  std::ostringstream text;
  text << seconds;
  return text.str();
}

}  // namespace

std::string this_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

void Membership::lead(const job::JobSpec& job, int signal_fd) {
  const double patience =
      options_.lead.lost.empty() ? options_.timeout_seconds : options_.lead.wait_seconds + notice_seconds();
  const double begin = base::monotonic_seconds(), deadline = begin + patience;
  // By then the remaining agents have noticed the loss of the previous leader too.
  const double fill_at = std::min(begin + notice_seconds(), deadline);
  meets_ = true;
  base::UniqueFd listener = listen();
  leaves_token_ = !options_.token;
  if (leaves_token_) {
    options_.token = parallel::JobToken::random();
    token_file_.emplace(output_, *options_.token);
  }
  server_ = std::make_unique<parallel::StoreServer>(std::move(listener), *options_.token,
                                                    [](const std::string& line) { log::warn("{}", line); });
  go_.run = coordinated()
                ? LeadMark{options_.lead.coordinator->run(), options_.lead.coordinator->epoch()}.text()
                : random_name();
  if (coordinated()) options_.lead.coordinator->publish(options_.rendezvous.text());
  job_yaml_ = shared_job(job);
  members_[0].isa = isa_here(job);
  if (!alone()) log::info("node 0 of {} waits for the others at {}", nodes(), options_.rendezvous.text());
  while (!missing().empty()) {
    std::vector<pollfd> fds{{signal_fd, POLLIN, 0}};
    watch(fds);
    const bool fills = takes_over_ && base::monotonic_seconds() < fill_at;
    ::poll(fds.data(), fds.size(), poll_timeout(fills ? std::min(fill_at, deadline) : deadline));
    std::optional<StopRequest> stop;
    if (fds[0].revents != 0)
      if (const int signal = read_signal(signal_fd); signal != 0) stop = stop_request(signal);
    std::vector<Event> events = receive(std::span(fds).subspan(3));
    receive_news(events);
    for (const Event& event : events) {
      if (event.what == Event::What::coordinator) log::warn("{}", event.text);
      if (event.what == Event::What::lead_lost) throw LeadLost(lead_lost_text(event.text));
      // The only message from a waiting node is a request to stop.
      if (event.what == Event::What::lost)
        log::warn("{} left the rendezvous: {}", name_of(event.node), event.text);
      if (event.what == Event::What::spares) log::info("{}", event.text);
      if (const auto* asked = event.message ? std::get_if<StopAsked>(&*event.message) : nullptr)
        stop = asked->request;
    }
    if (stop) {
      log::info("{}: stopped while node 0 waited for {}", stop->reason, missing());
      finish({.stop_signal = stop->exit_signal});
      return;
    }
    require_lead();
    while (auto joined = server_->take_joined()) admit(*std::move(joined));
    if (takes_over_ && base::monotonic_seconds() >= fill_at) fill_places();
    if (base::monotonic_seconds() <= deadline || missing().empty()) continue;
    const std::string text = "of " + std::to_string(nodes()) +
                             " nodes these did not come to the rendezvous at " + options_.rendezvous.text() +
                             " in " + seconds_text(patience) + " s: " + missing() +
                             "; see whether `trainerd run` was started there and can reach that address";
    finish({.failed = true, .kind = base::ErrorKind::comm, .message = text});
    throw base::comm_error(text);
  }
  meets_ = false;
  expected_.clear();
  turn_surplus_away();
  if (takes_over_) {
    lead_moved_ = options_.lead.lost + "; " + name_of(0) + " leads the run now";
    log::info("{}", lead_moved_);
  }
  agree_on_isa();
  // The lock of the output directory, taken later, decides whose token file it is. With a coordinator that is
  // already decided.
  if (!coordinated()) token_file_.reset();
}

/// Chooses the lowest instruction set of all nodes: results must not depend on which node computes them.
void Membership::agree_on_isa() {
  const auto by_isa = [](const Member& a, const Member& b) { return a.isa < b.isa; };
  const auto [lowest, highest] = std::minmax_element(members_.begin(), members_.end(), by_isa);
  go_.isa = lowest->isa;
  if (lowest->isa != highest->isa)
    log::warn("all nodes compute with {} kernels: {} has no more, {} has {}", to_string(lowest->isa),
              name_of(lowest - members_.begin()), name_of(highest - members_.begin()),
              to_string(highest->isa));
}

std::string Membership::missing() const {
  std::string names;
  for (std::int64_t node = 1; node < nodes(); ++node)
    if (!members_[static_cast<std::size_t>(node)].channel)
      names += (names.empty() ? "" : ", ") + name_of(node);
  return names;
}

/// Why an agent does not belong to the job; empty if it does.
std::string Membership::objection(const Hello& hello, const std::string& who) const {
  if (hello.version != version::version())
    return who + " runs trainerd " + hello.version + " and node 0 (" + this_host() + ") " +
           version::version() + "; install one version on all nodes";
  if (hello.nodes != job_nodes_)
    return who + " was started as one of " + std::to_string(hello.nodes) + " nodes, and node 0 (" +
           this_host() + ") as one of " + std::to_string(job_nodes_);
  if (!hello.spare && (hello.node < 1 || hello.node >= job_nodes_))
    return who + " is none of the nodes 1 to " + std::to_string(job_nodes_ - 1) + " that node 0 waits for";
  if (hello.job_yaml != job_yaml_)
    return who + " has another job than node 0 (" + this_host() +
           "): " + first_difference(job_yaml_, hello.job_yaml) + "; give every node the same job and options";
  return "";
}

/// Why an agent cannot have its number; empty if it can.
std::string Membership::taken_by(const Hello& hello) const {
  if (hello.spare || !members_[static_cast<std::size_t>(hello.node)].channel) return "";
  return "two agents say that they are node " + std::to_string(hello.node) + ", on " +
         name_of(hello.node).substr(5) + " and " + hello.host + "; give each node a number of its own";
}

void Membership::admit(parallel::StoreServer::Joined joined) {
  const std::string from = base::peer_address(joined.socket.get());
  Hello hello;
  try {
    if (const auto beats = decode_beat_hello(joined.text))
      return admit_beats(*beats, std::move(joined.socket));
    hello = decode_hello(joined.text);
  } catch (const base::CommError& error) {
    log::warn("the rendezvous dropped {}: {}", from, error.what());
    return;
  }
  base::watch_peer(joined.socket.get(), kAgentMessageSeconds);
  try {
    admit(hello, {hello.host, Channel(std::move(joined.socket)), hello.isa, hello.agent},
          who_is(hello, from));
  } catch (const base::CommError& error) {  // it has gone
    log::warn("the rendezvous dropped {}: {}", from, error.what());
  }
}

void Membership::admit(const Hello& hello, Member member, const std::string& who) {
  std::string why = objection(hello, who);
  if (why.empty()) take_over(hello);
  // Another agent may have taken that node's place.
  const bool taken = why.empty() && coordinated() && !taken_by(hello).empty();
  if (taken) member.channel->send(encode(NodeMessage{WaitAsSpare{}}));
  if (hello.spare || taken || (!why.empty() && takes_over_)) {
    std::vector<Event> events;
    if (!why.empty()) turn_away(member, who, why);
    else admit_spare(std::move(member), who, events);
    for (const Event& event : events) log::info("{}", event.text);
    return;
  }
  if (why.empty()) why = taken_by(hello);
  // Kept, so that it receives the refusal too.
  if (!why.empty()) {
    members_.push_back(std::move(member));
    refuse(why);
  }
  expected_.erase(hello.node);
  members_[static_cast<std::size_t>(hello.node)] = std::move(member);
}

void Membership::refuse(const std::string& why) {
  finish({.failed = true, .kind = base::ErrorKind::spec, .message = why});
  throw base::spec_error(why);
}

/// Adds the heartbeat connection of an agent that has been admitted or waits for it.
void Membership::admit_beats(const BeatHello& hello, base::UniqueFd socket) {
  const auto is = [&](const Member& member) { return member.channel && member.agent == hello.agent; };
  Member* member = nullptr;
  for (Member& m : members_)
    if (is(m)) member = &m;
  for (Member& m : spares_)
    if (is(m)) member = &m;
  for (Late& late : late_)
    if (is(late.member)) member = &late.member;
  if (member == nullptr || hello.agent.empty() || !beats_) return;
  member->beats = ++next_beats_;
  beats_->add(member->beats, std::move(socket), Heartbeats::Counts::at_once);
}

Hello Membership::hello_of(const job::JobSpec& job) const {
  return {.node = node(),
          .nodes = nodes(),
          .version = version::version(),
          .host = this_host(),
          .job_yaml = shared_job(job),
          .isa = isa_here(job),
          .agent = random_name(),
          .spare = options_.spare,
          .lost = options_.lead.lost,
          .folders = options_.lead.folders,
          .faults_done = options_.lead.faults_done};
}

/// Tries once to join the leader.
Membership::Reached Membership::try_to_join(const Hello& hello,
                                            const std::optional<parallel::JobToken>& given, double seconds,
                                            std::string& why) {
  const auto token = given ? given : TokenFile::read(output_);
  base::UniqueFd socket;
  if (token)
    socket =
        parallel::join_store(options_.rendezvous, *token, encode(hello), seconds, why, {}, answer_seconds());
  // Without a token it only tests whether the leader listens.
  const bool listens = !token && base::try_connect(options_.rendezvous, seconds, why);
  if (listens)
    why = "it has left no token for the others in " + TokenFile::path(output_) +
          "; set `output` to a directory that all nodes share (NFS, Lustre), by the same path, or give all " +
          "agents one token in TRAINERD_TOKEN";
  if (!socket) return listens ? Reached::without_token : Reached::no;
  options_.token = token;
  base::watch_peer(socket.get(), kAgentMessageSeconds);
  members_[0].channel.emplace(std::move(socket));
  agent_ = hello.agent;
  join_beats(OnMessage::give_up);
  return Reached::joined;
}

void Membership::follow(const job::JobSpec& job, int signal_fd) {
  const double deadline = base::monotonic_seconds() + options_.timeout_seconds;
  const Hello hello = hello_of(job);
  if (!options_.spare) members_[static_cast<std::size_t>(node())].host = hello.host;
  const std::optional<parallel::JobToken> given = options_.token;
  bool reported = false;
  if (options_.spare)
    log::info("a spare of {} nodes joins node 0 at {}", nodes(), options_.rendezvous.text());
  else log::info("node {} of {} joins node 0 at {}", node(), nodes(), options_.rendezvous.text());
  for (;;) {
    const double left = deadline - base::monotonic_seconds();
    std::string why;
    const Reached reached = try_to_join(hello, given, std::clamp(left, 0.1, kJoinSeconds), why);
    if (reached == Reached::joined) return await_go(signal_fd);
    const double waits = std::min(kTokenSeconds, options_.timeout_seconds / 2);
    const bool cannot = reached == Reached::without_token || why.find("another token") != std::string::npos;
    if (cannot && !reported && options_.timeout_seconds - left > waits) {
      log::warn("{} is there, but {}", name_of(0), why);
      reported = true;
    }
    const bool refused = why.find(base::errno_text(ECONNREFUSED)) != std::string::npos;
    if (options_.again && refused && options_.timeout_seconds - left > dead_seconds_)
      throw base::comm_error(name_of(0) + " does not serve the rendezvous at " + options_.rendezvous.text() +
                             " any more (" + why + "): the run has ended");
    if (left <= 0)
      throw base::comm_error(name_of(0) + " did not come to the rendezvous at " + options_.rendezvous.text() +
                             " in " + seconds_text(options_.timeout_seconds) + " s (" + why +
                             "); see whether its `trainerd run` was started, and whether " +
                             options_.rendezvous.host + " is an address of it that this host reaches");
    if (stops_waiting(signal_fd, kRetrySeconds)) return;
  }
}

/// Waits for `seconds`. Returns true if a signal ends the wait for the leader.
bool Membership::stops_waiting(int signal_fd, double seconds) {
  pollfd p{signal_fd, POLLIN, 0};
  if (::poll(&p, 1, static_cast<int>(1e3 * seconds)) <= 0) return false;
  const int signal = read_signal(signal_fd);
  if (signal == 0) return false;
  const StopRequest stop = stop_request(signal);
  log::info("{}: stopped before {} was reached", stop.reason, name_of(0));
  end_ = End{.stop_signal = stop.exit_signal};
  return true;
}

/// Opens the second connection to the leader, for heartbeats. If that fails, the reason may be the leader's
/// message on the first connection.
void Membership::join_beats(OnMessage on_message) {
  const double deadline = base::monotonic_seconds() + std::min(kBeatsSeconds, options_.timeout_seconds);
  std::string why;
  while (on_message == OnMessage::keep_trying || !members_[0].channel->ready()) {
    base::UniqueFd socket =
        parallel::join_store(options_.rendezvous, *options_.token, encode(BeatHello{agent_}), kJoinSeconds,
                             why, {}, answer_seconds());
    if (socket) {
      members_[0].beats = ++next_beats_;
      // Node 0 may check checkpoints and data for hours before it accepts the connection.
      beats_->add(members_[0].beats, std::move(socket), Heartbeats::Counts::from_first_beat);
      return;
    }
    if (base::monotonic_seconds() > deadline)
      throw base::comm_error(name_of(0) + " at " + options_.rendezvous.text() +
                             " took one connection and not a second (" + why + "); see the log of its agent");
    ::usleep(static_cast<useconds_t>(1e6 * kRetrySeconds));
  }
}

/// None if the connection has ended.
std::optional<std::string> Membership::receive_from_leader() {
  try {
    return members_[0].channel->receive();
  } catch (const base::CommError& error) {
    if (!coordinated()) throw;
    lose_leader(name_of(0) + ": " + error.what());
  }
}

// No deadline here: the leader decides when to give up, or its loss is noticed. A spare waits until a node is
// lost.
void Membership::await_go(int signal_fd, bool resizes) {
  StopSignals signals;
  for (;;) {
    std::array<pollfd, 3> fds{pollfd{signal_fd, POLLIN, 0}, pollfd{members_[0].channel->fd(), POLLIN, 0},
                              pollfd{beats_->event_fd(), POLLIN, 0}};
    beats_->loop_waits();
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    if (fds[0].revents != 0)
      if (const int signal = read_signal(signal_fd); signal != 0) {
        const StopSignals::Meaning meaning = signals.on_signal(signal, base::monotonic_seconds());
        // The run continues without a spare.
        if (meaning == StopSignals::Meaning::stop_at_once || options_.spare) {
          end_ = End{.stop_signal = options_.spare ? stop_request(signal).exit_signal : signal};
          return;
        }
        if (meaning == StopSignals::Meaning::stop) {
          stop_ = stop_request(signal);
          send(StopAsked{*stop_});
        }
      }
    for (const Heartbeats::Report& report : beats_->take())
      if (report.what == Heartbeats::Report::What::silent) {
        if (options_.spare && !coordinated())
          throw Excluded(name_of(0) + " " + silence_text(report.seconds), node(), true);
        lose_leader(name_of(0) + (coordinated() ? " was lost: it " : " ") + silence_text(report.seconds));
      }
    if (fds[1].revents == 0) continue;
    const auto text = receive_from_leader();
    if (!text)
      lose_leader(name_of(0) + (options_.spare && coordinated()
                                    ? " was lost: its agent has ended or its host is out of reach"
                                    : " was lost before training began; see what became of its agent"));
    const NodeMessage message = decode_node_message(*text);
    if (const auto* end = std::get_if<End>(&message)) {
      end_ = *end;
      finished_ = true;
      if (end->excludes) throw Excluded(end->message, node(), options_.spare);
      if (end->failed) base::throw_error(end->kind, end->message);
      return;
    }
    if (const auto* show = std::get_if<ShowState>(&message)) {
      const auto parts = options_.show_state
                             ? options_.show_state(*show)
                             : std::vector<StateShown>{{.number = show->number, .last = true}};
      for (const StateShown& part : parts) send(part);
    }
    if (std::holds_alternative<WaitAsSpare>(message)) {
      log::info("the run has a node {}: this agent waits as a spare", node());
      options_.spare = true;
      // Where agents meet a new leader, one that waits may still get a place, and the leader asks it then.
      if (resizes && options_.forget_state) options_.forget_state();
    }
    if (const auto* place = std::get_if<TakePlace>(&message)) {
      options_.spare = false;
      options_.nodes.node = place->node;
      if (std::cmp_less_equal(members_.size(), place->node))
        members_.resize(static_cast<std::size_t>(place->node) + 1);
      members_[static_cast<std::size_t>(place->node)].host = this_host();
      log::info("this agent is node {} from now on", place->node);
    }
    if (const auto* go = std::get_if<Go>(&message)) {
      go_ = *go;
      clock_ahead_ = base::wall_seconds() - go->wall_seconds;
      if (go->nodes > 0) options_.nodes.nodes = go->nodes;
      members_.resize(static_cast<std::size_t>(nodes()));
      // `Go` may have come before this agent opened its second connection.
      if (members_[0].beats == 0) join_beats(OnMessage::keep_trying);
      return;
    }
  }
}

}  // namespace trainerd::core::run
