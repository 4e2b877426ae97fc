#include "core/run/nodes/state_exchange.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "core/run/nodes/copy_transfer.h"
#include "core/run/nodes/peer_server.h"
#include "core/run/nodes/state_json.h"
#include "core/run/wire/channel.h"
#include "core/run/wire/json_text.h"
#include "io/hash/hash.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "parallel/comm/rendezvous/tcp_store.h"

namespace trainerd::core::run {
namespace {

using nlohmann::json;

// How long the other agent has to take a connection.
constexpr double kReachAgentSeconds = 10;
// The same to say where it listens: it looks at the data before.
constexpr double kMeetSeconds = 30;
constexpr double kJoinTrySeconds = 1;
constexpr std::chrono::milliseconds kRefusedPause{100};

std::string state_key_of(std::int64_t attempt, std::int64_t node) {
  return "state/" + std::to_string(attempt) + "/" + std::to_string(node);
}

}  // namespace

struct StateExchange::State {
  explicit State(Options o) : options(std::move(o)) {
    server.emplace(options.address, options.token, "held state",
                   [this](Channel& channel, const std::string& text) { give(channel, text); });
  }

  void give(Channel& channel, const std::string& text);
  NodeCopy find(const StateCut& cut, std::int64_t node);
  Channel connect(std::int64_t node, const json& what) const;

  Options options;
  std::mutex mutex;
  std::vector<HeldState> offered;
  std::int64_t attempt = 1;
  std::optional<PeerServer> server;  ///< last: its threads use the rest
};

/// The copy has an empty list of ranks where nothing of the kind is held.
NodeCopy StateExchange::State::find(const StateCut& cut, std::int64_t node) {
  const std::lock_guard lock(mutex);
  for (const HeldState& state : offered)
    if (state.cut == cut && state.copy.node == node) return state.copy;
  return {};
}

/// The peer sees what each rank's bytes hold, says which it wants, and gets these.
void StateExchange::State::give(Channel& channel, const std::string& text) {
  const auto [cut, node] = from_message(text, [](const json& j, const std::string& type) {
    if (type != "give_state") unknown_message(type);
    return std::pair<StateCut, std::int64_t>(cut_from(j.at("cut")), j.at("node"));
  });
  NodeCopy copy = find(cut, node);
  if (copy.ranks.empty())
    return channel.send(refusal("node " + std::to_string(options.node) + " has no snapshot of step " +
                                std::to_string(cut.step) + " of node " + std::to_string(node)));
  send_outline(channel, copy);
  const auto wanted = from_message(received(channel), [](const json& j, const std::string& type) {
    if (type != "want") unknown_message(type);
    return j.at("ranks").get<std::vector<std::size_t>>();
  });
  NodeCopy part = copy;
  part.ranks.clear();
  for (const std::size_t rank : wanted) {
    NodeCopy::Rank& given = part.ranks.emplace_back(copy.ranks.at(rank));
    if (given.xxh3.empty()) given.xxh3 = io::xxh3_hex(bytes_of(given));
  }
  send_copy(channel, part);
}

Channel StateExchange::State::connect(std::int64_t node, const json& what) const {
  const auto word = parallel::TcpStore(options.store, options.token, kReachAgentSeconds)
                        .wait(state_key_of(attempt, node), kMeetSeconds);
  const auto where = word ? base::parse_endpoint(*word) : std::nullopt;
  const std::string who = "node " + std::to_string(node);
  if (!where) throw base::comm_error(who + " has not said where it gives its snapshots");
  std::string why;
  base::UniqueFd fd;
  const double end = base::monotonic_seconds() + kReachAgentSeconds;
  for (;;) {
    fd = parallel::join_store(*where, options.token, to_message(what), kJoinTrySeconds, why);
    if (fd || base::monotonic_seconds() > end) break;
    std::this_thread::sleep_for(kRefusedPause);  // a connection may be refused at once
  }
  if (!fd) throw base::comm_error(who + " at " + where->text() + ": " + why);
  base::watch_peer(fd.get(), kPeerSeconds);
  return Channel(std::move(fd));
}

StateExchange::StateExchange(Options options) : state_(std::make_unique<State>(std::move(options))) {}
StateExchange::~StateExchange() = default;

void StateExchange::begin(std::int64_t attempt) {
  state_->attempt = attempt;
  parallel::TcpStore store(state_->options.store, state_->options.token, kReachAgentSeconds);
  store.set(state_key_of(attempt, state_->options.node),
            base::Endpoint{state_->options.address, state_->server->port()}.text());
}

void StateExchange::offer(std::vector<HeldState> states) {
  const std::lock_guard lock(state_->mutex);
  state_->offered = std::move(states);
}

NodeCopy StateExchange::fetch(const StateCut& cut, const StateSource& source,
                              const std::function<bool(const std::vector<io::TensorSlice>&)>& wanted) {
  Channel channel =
      state_->connect(source.from, json{{"type", "give_state"}, {"cut", to_json(cut)}, {"node", source.of}});
  const NodeCopy outline = receive_outline(channel);
  std::vector<std::size_t> ranks;
  for (std::size_t i = 0; i < outline.ranks.size(); ++i)
    if (wanted(outline.ranks[i].slices)) ranks.push_back(i);
  channel.send(to_message(json{{"type", "want"}, {"ranks", ranks}}));
  NodeCopy copy = receive_copy(channel, {});
  if (copy.ranks.size() != ranks.size() || !is_whole(copy))
    throw base::comm_error("the snapshots of step " + std::to_string(cut.step) + " that node " +
                           std::to_string(source.from) + " gave are damaged");
  return copy;
}

}  // namespace trainerd::core::run
