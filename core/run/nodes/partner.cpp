#include "core/run/nodes/partner.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "core/run/nodes/copy_transfer.h"
#include "core/run/nodes/peer_server.h"
#include "core/run/wire/channel.h"
#include "core/run/wire/json_text.h"
#include "io/hash/hash.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "parallel/comm/rendezvous/tcp_store.h"

namespace trainerd::core::run {
namespace {

using nlohmann::json;

constexpr double kConnectSeconds = 10;
constexpr double kTrySeconds = 1;
// Interval between two checks whether the copy is still wanted.
constexpr double kWaitSeconds = 0.5;
// Complete copies kept per node: the one that all partners keep stays while a newer one arrives.
constexpr std::size_t kKept = 2;

std::string key_of(std::int64_t attempt, std::int64_t node) {
  return "partner/" + std::to_string(attempt) + "/" + std::to_string(node);
}

/// Takes out the oldest copy that is not of `kept_by_all`.
NodeCopy evict(std::vector<NodeCopy>& copies, std::int64_t kept_by_all) {
  auto out = std::find_if(copies.begin(), copies.end(),
                          [&](const NodeCopy& copy) { return copy.step != kept_by_all; });
  if (out == copies.end()) out = copies.begin();
  NodeCopy copy = std::move(*out);
  copies.erase(out);
  return copy;
}

}  // namespace

struct Partner::State {
  explicit State(Options o) : options(std::move(o)), result_event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!result_event) throw base::device_error("cannot make an eventfd: " + base::errno_text(errno));
    server.emplace(options.address, options.token, "partner copies",
                   [this](Channel& channel, const std::string& text) { serve(channel, text); });
  }
  ~State() {
    close_outgoing();
    if (outgoing.joinable()) outgoing.join();
    server.reset();
  }

  void serve(Channel& channel, const std::string& text);
  void keep(Channel& channel);
  void require_present(std::int64_t sent_in) const;
  void give(Channel& channel, std::int64_t node, std::int64_t step);
  Channel connect(const json& what);
  bool is_stopped() const {
    const std::lock_guard lock(mutex);
    return stopped;
  }
  void show_outgoing(int descriptor) {
    const std::lock_guard lock(mutex);
    outgoing_fd = descriptor;
    if (stopped && outgoing_fd >= 0) ::shutdown(outgoing_fd, SHUT_RDWR);
  }
  void close_outgoing() {
    const std::lock_guard lock(mutex);
    stopped = true;
    if (outgoing_fd >= 0) ::shutdown(outgoing_fd, SHUT_RDWR);
  }

  Options options;
  base::UniqueFd result_event;
  std::thread outgoing;
  mutable std::mutex mutex;
  std::map<std::int64_t, std::vector<NodeCopy>> kept;  ///< by node, oldest first
  std::int64_t attempt = 1;
  bool busy = false, stopped = false;
  int outgoing_fd = -1;
  std::optional<Sent> result;
  std::optional<PeerServer> server;  ///< last: its threads use the rest
};

void Partner::State::serve(Channel& channel, const std::string& text) {
  const auto [what, node, step] = from_message(text, [](const json& j, const std::string& type) {
    return std::tuple<std::string, std::int64_t, std::int64_t>(type, j.at("node"), j.at("step"));
  });
  if (what == "keep") keep(channel);
  else if (what == "give") give(channel, node, step);
  else unknown_message(what);
}

/// Keeps a copy once all of it has arrived with correct hashes. Until then the copy that all partners keep
/// stays.
void Partner::State::keep(Channel& channel) {
  NodeCopy room;
  try {
    const auto [node, sent_in, kept_by_all] =
        from_message(received(channel), [](const json& j, const std::string& type) {
          if (type != "begin") unknown_message(type);
          return std::tuple<std::int64_t, std::int64_t, std::int64_t>(j.at("node"), j.at("attempt"),
                                                                      j.at("kept_by_all"));
        });
    {
      const std::lock_guard lock(mutex);
      require_present(sent_in);
      std::vector<NodeCopy>& copies = kept[node];
      while (copies.size() >= kKept) room = evict(copies, kept_by_all);
    }
    NodeCopy copy = receive_copy(channel, std::move(room));
    if (!is_whole(copy))
      throw base::comm_error("the copy of step " + std::to_string(copy.step) + " of node " +
                             std::to_string(node) + " was damaged on its way to node " +
                             std::to_string(options.node));
    {
      const std::lock_guard lock(mutex);
      require_present(sent_in);
      std::vector<NodeCopy>& copies = kept[node];
      std::erase_if(copies, [&](const NodeCopy& c) { return c.step >= copy.step; });
      while (copies.size() >= kKept) evict(copies, kept_by_all);
      copies.push_back(std::move(copy));
    }
    channel.send(to_message(json{{"type", "kept"}}));
  } catch (const base::Error& error) {
    channel.send(refusal(error.what()));
    throw;
  }
}

/// The steps of an earlier attempt may be done again by now, with a new copy.
void Partner::State::require_present(std::int64_t sent_in) const {
  if (sent_in < attempt) throw base::comm_error("it is of an attempt of the run that has ended");
}

void Partner::State::give(Channel& channel, std::int64_t node, std::int64_t step) {
  NodeCopy copy;
  {
    const std::lock_guard lock(mutex);
    for (const NodeCopy& c : kept[node])
      if (c.step == step) copy = c;  // shares ownership of the bytes
  }
  if (copy.ranks.empty())
    channel.send(refusal("node " + std::to_string(options.node) + " has no copy of step " +
                         std::to_string(step) + " of node " + std::to_string(node)));
  else send_copy(channel, copy);
}

Channel Partner::State::connect(const json& what) {
  std::int64_t now;
  {
    const std::lock_guard lock(mutex);
    now = attempt;
  }
  std::optional<std::string> word;
  const double start = base::monotonic_seconds();
  while (!word && !is_stopped() && base::monotonic_seconds() < start + kPeerSeconds) try {
      // The leader may be gone; `stop_sending` must not wait for the whole time.
      word = parallel::TcpStore(options.store, options.token, kTrySeconds)
                 .wait(key_of(now, options.partner), kWaitSeconds);
    } catch (const base::CommError&) {
      if (is_stopped() || base::monotonic_seconds() > start + kConnectSeconds) throw;
    }
  const auto where = word ? base::parse_endpoint(*word) : std::nullopt;
  if (!where)
    throw base::comm_error("node " + std::to_string(options.partner) +
                           ", which keeps this node's copies, has not said where it listens");
  std::string why;
  base::UniqueFd fd;
  // A host that is cut off does not answer; `stop_sending` must not wait for the whole time.
  for (double tries = kConnectSeconds / kTrySeconds; !fd && tries > 0; --tries) {
    const double begin = base::monotonic_seconds();
    // A stopped process accepts the connection and does not answer.
    fd = parallel::join_store(*where, options.token, to_message(what), kTrySeconds, why,
                              [this](int descriptor) { show_outgoing(descriptor); });
    if (is_stopped() || base::monotonic_seconds() - begin < kTrySeconds / 2) break;  // it was refused at once
  }
  if (!fd)
    throw base::comm_error("node " + std::to_string(options.partner) + " at " + where->text() + ": " + why);
  base::watch_peer(fd.get(), kPeerSeconds);
  return Channel(std::move(fd));
}

Partner::Partner(Options options) : state_(std::make_unique<State>(std::move(options))) {}
Partner::~Partner() = default;

void Partner::begin(std::int64_t attempt) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->attempt = attempt;
    state_->stopped = false;
  }
  parallel::TcpStore store(state_->options.store, state_->options.token, kConnectSeconds);
  store.set(key_of(attempt, state_->options.node),
            base::Endpoint{state_->options.address, state_->server->port()}.text());
}

void Partner::send(NodeCopy copy, std::int64_t kept_by_all) {
  State& s = *state_;
  if (s.outgoing.joinable()) s.outgoing.join();
  std::int64_t sent_in = 1;
  {
    const std::lock_guard lock(s.mutex);
    base::check(!s.busy, "one copy is sent at a time");
    s.busy = true;
    s.stopped = false;
    sent_in = s.attempt;
  }
  s.outgoing = std::thread([&s, kept_by_all, sent_in, copy = std::move(copy)]() mutable {
    Sent sent{.step = copy.step, .bytes = copy.bytes(), .seconds = 0, .problem = {}};
    const double start = base::monotonic_seconds();
    std::optional<Channel> channel;  // closed only when no other thread can shut it down
    try {
      for (NodeCopy::Rank& rank : copy.ranks) rank.xxh3 = io::xxh3_hex(bytes_of(rank));
      // `connect` registers the descriptor, so that `close_outgoing` can shut it down.
      channel.emplace(s.connect(json{{"type", "keep"}, {"node", copy.node}, {"step", copy.step}}));
      channel->send(to_message(
          json{{"type", "begin"}, {"node", copy.node}, {"attempt", sent_in}, {"kept_by_all", kept_by_all}}));
      send_copy(*channel, copy);
      from_message(received(*channel), [](const json& j, const std::string& type) {
        if (type != "kept") throw base::comm_error(j.at("why").get<std::string>());
        return 0;
      });
    } catch (const std::exception& error) {
      sent.problem = error.what();
    }
    sent.seconds = base::monotonic_seconds() - start;
    const std::lock_guard lock(s.mutex);
    s.outgoing_fd = -1;
    s.busy = false;
    s.result = std::move(sent);
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(s.result_event.get(), &one, sizeof(one));
  });
}

bool Partner::sending() const {
  const std::lock_guard lock(state_->mutex);
  return state_->busy || state_->result;
}

std::optional<Partner::Sent> Partner::take() {
  const std::lock_guard lock(state_->mutex);
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(state_->result_event.get(), &count, sizeof(count));
  return std::exchange(state_->result, std::nullopt);
}

int Partner::event_fd() const { return state_->result_event.get(); }

void Partner::stop_sending() { state_->close_outgoing(); }

std::vector<NodeCopy> Partner::kept() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<NodeCopy> all;
  for (const auto& [node, copies] : state_->kept) all.insert(all.end(), copies.begin(), copies.end());
  return all;
}

void Partner::drop_after(std::int64_t step) {
  const std::lock_guard lock(state_->mutex);
  for (auto& [node, copies] : state_->kept)
    std::erase_if(copies, [&](const NodeCopy& copy) { return copy.step > step; });
}

NodeCopy Partner::fetch(std::int64_t step) {
  const std::int64_t node = state_->options.node;
  Channel channel = state_->connect(json{{"type", "give"}, {"node", node}, {"step", step}});
  const auto hide = [this](Channel*) { state_->show_outgoing(-1); };
  const std::unique_ptr<Channel, decltype(hide)> shown(&channel, hide);
  NodeCopy copy = receive_copy(channel, {});
  base::check(copy.node == node && copy.step == step, "a partner gives what it was asked for");
  if (!is_whole(copy))
    throw base::comm_error("the copy of step " + std::to_string(step) + " that node " +
                           std::to_string(state_->options.partner) + " kept is damaged");
  return copy;
}

}  // namespace trainerd::core::run
