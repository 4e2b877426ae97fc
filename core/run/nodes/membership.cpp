#include "core/run/nodes/membership.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <sstream>

#include "core/run/log/log.h"
#include "core/run/stop/early_stop.h"
#include "core/spec/spec.h"
#include "core/version/version.h"
#include "io/storage/storage.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

// A frozen peer must not freeze the others: no message between agents waits longer to leave or to be whole.
constexpr double kMessageSeconds = 30;
constexpr double kRetrySeconds = 0.1;
// A token that a leader has not left by then may well be one that it left elsewhere.
constexpr double kTokenSeconds = 5;
// Of one attempt to reach the leader; signals are read between two.
constexpr double kJoinSeconds = 1;
// How long the other nodes have to receive the last message.
constexpr double kFarewellSeconds = 2;

std::string this_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

std::string random_name() {
  std::random_device random;
  std::ostringstream text;
  text << std::hex << random() << random();
  return text.str();
}

/// Where two resolved jobs part, for people.
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

int milliseconds_until(double deadline) {
  return static_cast<int>(std::clamp(1e3 * (deadline - base::monotonic_seconds()) + 1, 0.0, 1e8));
}

std::string seconds_text(double seconds) {
  std::ostringstream text;
  text << seconds;
  return text.str();
}

}  // namespace

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
    : options_(options), output_(io::local_path(job.output)) {
  members_.resize(static_cast<std::size_t>(nodes()));
  for (std::size_t node = 0; node < members_.size() && node < options_.nodes.hosts.size(); ++node)
    members_[node].host = options_.nodes.hosts[node];
  if (leads()) lead(job, signal_fd);
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

// ---- meeting

void Membership::lead(const job::JobSpec& job, int signal_fd) {
  const double deadline = base::monotonic_seconds() + options_.timeout_seconds;
  base::UniqueFd listener = base::listen_at(options_.rendezvous);
  leaves_token_ = !options_.token;
  if (leaves_token_) {
    options_.token = parallel::JobToken::random();
    token_file_.emplace(output_, *options_.token);
  }
  server_ = std::make_unique<parallel::StoreServer>(std::move(listener), *options_.token,
                                                    [](const std::string& line) { log::warn("{}", line); });
  go_.run = random_name();
  job_yaml_ = shared_job(job);
  members_[0].isa = isa_here(job);
  if (!alone()) log::info("node 0 of {} waits for the others at {}", nodes(), options_.rendezvous.text());
  while (!missing().empty()) {
    std::vector<pollfd> fds{{signal_fd, POLLIN, 0}};
    watch(fds);
    ::poll(fds.data(), fds.size(), milliseconds_until(deadline));
    std::optional<StopRequest> stop;
    if (fds[0].revents != 0)
      if (const int signal = read_signal(signal_fd); signal != 0) stop = stop_request(signal);
    for (const Event& event : receive(std::span(fds).subspan(2))) {
      // A node that waits says one thing alone: that it is asked to stop.
      if (!event.message) log::warn("{} left the rendezvous", name_of(event.node));
      if (const auto* asked = event.message ? std::get_if<StopAsked>(&*event.message) : nullptr)
        stop = asked->request;
    }
    if (stop) {
      log::info("{}: stopped while node 0 waited for {}", stop->reason, missing());
      finish({.stop_signal = stop->exit_signal});
      return;
    }
    while (auto joined = server_->take_joined()) admit(*std::move(joined));
    if (base::monotonic_seconds() <= deadline || missing().empty()) continue;
    const std::string text = "of " + std::to_string(nodes()) +
                             " nodes these did not come to the rendezvous at " + options_.rendezvous.text() +
                             " in " + seconds_text(options_.timeout_seconds) + " s: " + missing() +
                             "; see whether `trainerd run` was started there and can reach that address";
    finish({.failed = true, .kind = base::ErrorKind::comm, .message = text});
    throw base::comm_error(text);
  }
  agree_on_isa();
  // Whose output this is shows later.
  token_file_.reset();
}

/// The lowest of all nodes: results must not depend on the node that computes them.
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

/// Why an agent is none of the job's; empty: it is.
std::string Membership::objection(const Hello& hello, const std::string& who) const {
  if (hello.version != version::version())
    return who + " runs trainerd " + hello.version + " and node 0 (" + this_host() + ") " +
           version::version() + "; install one version on all nodes";
  if (hello.nodes != nodes())
    return who + " was started as one of " + std::to_string(hello.nodes) + " nodes, and node 0 (" +
           this_host() + ") as one of " + std::to_string(nodes());
  if (hello.node < 1 || hello.node >= nodes())
    return who + " is none of the nodes 1 to " + std::to_string(nodes() - 1) + " that node 0 waits for";
  if (hello.job_yaml != job_yaml_)
    return who + " has another job than node 0 (" + this_host() +
           "): " + first_difference(job_yaml_, hello.job_yaml) + "; give every node the same job and options";
  if (members_[static_cast<std::size_t>(hello.node)].channel)
    return "two agents say that they are node " + std::to_string(hello.node) + ", on " +
           name_of(hello.node).substr(5) + " and " + hello.host + "; give each node a number of its own";
  return "";
}

void Membership::admit(parallel::StoreServer::Joined joined) {
  const std::string from = base::peer_address(joined.socket.get());
  base::watch_peer(joined.socket.get(), kMessageSeconds);
  Channel channel(std::move(joined.socket));
  Hello hello;
  try {
    hello = decode_hello(joined.text);
  } catch (const base::CommError& error) {
    log::warn("the rendezvous dropped {}: {}", from, error.what());
    return;
  }
  const std::string why =
      objection(hello, "node " + std::to_string(hello.node) + " (" + hello.host + ", " + from + ")");
  // Kept for the last word even if it is the one that does not belong.
  if (!why.empty()) {
    members_.push_back({hello.host, std::move(channel), hello.isa});
    refuse(why);
  }
  members_[static_cast<std::size_t>(hello.node)] = {hello.host, std::move(channel), hello.isa};
}

void Membership::refuse(const std::string& why) {
  finish({.failed = true, .kind = base::ErrorKind::spec, .message = why});
  throw base::spec_error(why);
}

void Membership::follow(const job::JobSpec& job, int signal_fd) {
  const double deadline = base::monotonic_seconds() + options_.timeout_seconds;
  const Hello hello{node(), nodes(), version::version(), this_host(), shared_job(job), isa_here(job)};
  members_[static_cast<std::size_t>(node())].host = hello.host;
  const std::optional<parallel::JobToken> given = options_.token;
  bool told = false;
  log::info("node {} of {} joins node 0 at {}", node(), nodes(), options_.rendezvous.text());
  for (;;) {
    const double left = deadline - base::monotonic_seconds();
    std::string why;
    const auto token = given ? given : TokenFile::read(output_);
    const double patience = std::clamp(left, 0.1, kJoinSeconds);
    base::UniqueFd socket;
    if (token) socket = parallel::join_store(options_.rendezvous, *token, encode(hello), patience, why);
    // Without one there is nothing to say, but whether somebody listens.
    const bool listens = !token && base::try_connect(options_.rendezvous, patience, why);
    if (listens)
      why =
          "it has left no token for the others in " + TokenFile::path(output_) +
          "; set `output` to a directory that all nodes share (NFS, Lustre), by the same path, or give all " +
          "agents one token in TRAINERD_TOKEN";
    if (socket) {
      options_.token = token;
      base::watch_peer(socket.get(), kMessageSeconds);
      members_[0].channel.emplace(std::move(socket));
      return await_go(signal_fd);
    }
    if (listens && !told && options_.timeout_seconds - left > kTokenSeconds) {
      log::warn("{} is there, but {}", name_of(0), why);
      told = true;
    }
    if (left <= 0)
      throw base::comm_error(name_of(0) + " did not come to the rendezvous at " + options_.rendezvous.text() +
                             " in " + seconds_text(options_.timeout_seconds) + " s (" + why +
                             "); see whether its `trainerd run` was started, and whether " +
                             options_.rendezvous.host + " is an address of it that this host reaches");
    pollfd p{signal_fd, POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>(1e3 * kRetrySeconds)) <= 0) continue;
    if (const int signal = read_signal(signal_fd); signal != 0) {
      const StopRequest stop = stop_request(signal);
      log::info("{}: stopped before {} was reached", stop.reason, name_of(0));
      end_ = End{.stop_signal = stop.exit_signal};
      return;
    }
  }
}

// The leader's deadline is for all: it says when to give up, or is gone.
void Membership::await_go(int signal_fd) {
  StopSignals signals;
  for (;;) {
    std::array<pollfd, 2> fds{pollfd{signal_fd, POLLIN, 0}, pollfd{members_[0].channel->fd(), POLLIN, 0}};
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    if (fds[0].revents != 0)
      if (const int signal = read_signal(signal_fd); signal != 0) {
        const StopSignals::Meaning meaning = signals.on_signal(signal, base::monotonic_seconds());
        if (meaning == StopSignals::Meaning::stop_at_once) {
          end_ = End{.stop_signal = signal};
          return;
        }
        if (meaning == StopSignals::Meaning::stop) {
          stop_ = stop_request(signal);
          send(StopAsked{*stop_});
        }
      }
    if (fds[1].revents == 0) continue;
    const auto text = members_[0].channel->receive();
    if (!text)
      throw base::comm_error(name_of(0) + " was lost before training began; see what became of its agent");
    const NodeMessage message = decode_node_message(*text);
    if (const auto* end = std::get_if<End>(&message)) {
      end_ = *end;
      finished_ = true;
      if (end->failed) base::throw_error(end->kind, end->message);
      return;
    }
    if (const auto* go = std::get_if<Go>(&message)) {
      go_ = *go;
      return;
    }
  }
}

void Membership::begin(Go go) {
  go.run = go_.run;
  go.isa = go_.isa;
  go_ = std::move(go);
  if (leaves_token_ && !token_file_) token_file_.emplace(output_, *options_.token);
  if (!alone()) send(go_);
}

// ---- where workers meet

base::Endpoint Membership::store() const {
  // The server's own host need not know itself by the name that others use.
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

// ---- talking

void Membership::watch(std::vector<pollfd>& fds) const {
  fds.push_back({server_ ? server_->event_fd() : -1, POLLIN, 0});
  for (const Member& member : members_)
    fds.push_back({member.channel ? member.channel->fd() : -1, POLLIN, 0});
}

/// Agents that come to a run that has begun: the one that is expected is admitted, others are turned away.
std::vector<Membership::Event> Membership::meet_late() {
  std::vector<Event> events;
  while (auto joined = server_->take_joined()) {
    const std::string from = base::peer_address(joined->socket.get());
    base::watch_peer(joined->socket.get(), kMessageSeconds);
    Channel channel(std::move(joined->socket));
    std::string why = "the job runs already, with a node of each number; end it before it is started again";
    try {
      const Hello hello = decode_hello(joined->text);
      if (expected_ == hello.node) {
        why = objection(hello, "node " + std::to_string(hello.node) + " (" + hello.host + ", " + from + ")");
        if (why.empty() && hello.isa < go_.isa)
          why = "the job runs with " + std::string(to_string(go_.isa)) + " kernels, and this host has " +
                to_string(hello.isa) + " at the most";
      }
      if (why.empty()) {
        members_[static_cast<std::size_t>(hello.node)] = {hello.host, std::move(channel), hello.isa};
        expected_.reset();
        events.push_back({.node = hello.node, .message = std::nullopt, .returned = true});
        continue;
      }
      log::warn("an agent at {} wants to join a job that runs already: it is turned away: {}", from, why);
      channel.send(encode(NodeMessage{End{.failed = true, .kind = base::ErrorKind::comm, .message = why}}));
    } catch (const base::CommError& error) {  // it is no agent, or has gone by itself
      log::warn("the rendezvous dropped {}: {}", from, error.what());
    }
  }
  return events;
}

std::vector<Membership::Event> Membership::take(std::span<const pollfd> fds) {
  std::vector<Event> events = receive(fds.subspan(1));
  if (fds[0].revents != 0)
    for (Event& event : meet_late()) events.push_back(std::move(event));
  return events;
}

std::vector<Membership::Event> Membership::receive(std::span<const pollfd> fds) {
  std::vector<Event> events;
  for (std::size_t node = 0; node < members_.size(); ++node) {
    if (fds[node].revents == 0 || !members_[node].channel) continue;
    Event event{static_cast<std::int64_t>(node), std::nullopt};
    try {
      if (const auto text = members_[node].channel->receive()) event.message = decode_node_message(*text);
    } catch (const base::CommError& error) {
      log::error("{}: {}", name_of(event.node), error.what());
    }
    if (!event.message) members_[node].channel.reset();
    if (const auto* end = event.message ? std::get_if<End>(&*event.message) : nullptr;
        end != nullptr && !leads()) {
      end_ = *end;
      finished_ = true;
    }
    events.push_back(std::move(event));
  }
  return events;
}

void Membership::send(const NodeMessage& message) {
  const std::string text = encode(message);
  for (Member& member : members_) {
    if (!member.channel) continue;
    try {
      member.channel->send(text);
    } catch (const base::CommError&) {
      // Its end is seen where its connection is read.
    }
  }
}

// A connection that is closed with bytes unread takes with it what was sent last: so they are read until the
// other side has closed.
void Membership::finish(const End& end) {
  end_ = end;
  if (finished_) return;
  finished_ = true;
  if (leads()) send(end);
  else if (end.failed) send(NodeFailed{end.kind, end.message, 2});
  const double deadline = base::monotonic_seconds() + kFarewellSeconds;
  for (Member& member : members_)
    if (member.channel) ::shutdown(member.channel->fd(), SHUT_WR);
  for (Member& member : members_) {
    std::array<char, 4096> unheard;
    while (member.channel) {
      pollfd p{member.channel->fd(), POLLIN, 0};
      if (::poll(&p, 1, milliseconds_until(deadline)) <= 0 ||
          ::recv(p.fd, unheard.data(), unheard.size(), 0) <= 0)
        member.channel.reset();
    }
  }
}

}  // namespace trainerd::core::run
