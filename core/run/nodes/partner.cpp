#include "core/run/nodes/partner.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include "core/run/log/log.h"
#include "core/run/wire/channel.h"
#include "core/run/wire/json_text.h"
#include "core/run/wire/slices_json.h"
#include "io/hash/hash.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "parallel/comm/rendezvous/tcp_store.h"

namespace trainerd::core::run {
namespace {

using nlohmann::json;

// A peer that does not read or write for this long is lost.
constexpr double kPeerSeconds = 30;
constexpr double kConnectSeconds = 10;
constexpr double kTrySeconds = 1;
// Interval between two checks whether the copy is still wanted.
constexpr double kWaitSeconds = 0.5;
// Complete copies kept per node: the one that all partners keep stays while a newer one arrives.
constexpr std::size_t kKept = 2;

std::string key_of(std::int64_t attempt, std::int64_t node) {
  return "partner/" + std::to_string(attempt) + "/" + std::to_string(node);
}

json to_json(const NodeCopy& copy) {
  json ranks = json::array();
  for (const NodeCopy::Rank& rank : copy.ranks)
    ranks.push_back({{"bytes", rank.bytes},
                     {"xxh3", rank.xxh3},
                     {"slices", slices_to_json(rank.slices)},
                     {"borrowed", slices_to_json(rank.borrowed)}});
  return {{"type", "copy"},        {"node", copy.node},     {"step", copy.step}, {"attempt", copy.attempt},
          {"cursor", copy.cursor}, {"tokens", copy.tokens}, {"ranks", ranks}};
}

NodeCopy copy_from(const std::string& text) {
  return from_message(text, [](const json& j, const std::string& type) {
    if (type == "refused") throw base::comm_error(j.at("why").get<std::string>());
    if (type != "copy") unknown_message(type);
    NodeCopy copy{j.at("node"), j.at("step"), j.at("cursor"), j.at("tokens"), {}, j.at("attempt")};
    for (const json& rank : j.at("ranks"))
      copy.ranks.push_back({slices_from(rank.at("slices")), slices_from(rank.at("borrowed")),
                            rank.at("bytes"), rank.at("xxh3"), nullptr});
    return copy;
  });
}

std::string refusal(const std::string& why) { return to_message(json{{"type", "refused"}, {"why", why}}); }

void send_bytes(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw base::comm_error("the connection ended while a snapshot was sent");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void receive_bytes(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw base::comm_error("the connection ended while a snapshot came");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

std::string received(Channel& channel) {
  std::optional<std::string> text = channel.receive();
  if (!text) throw base::comm_error("the connection ended");
  return *std::move(text);
}

std::span<const std::byte> bytes_of(const NodeCopy::Rank& rank) {
  return rank.memory->bytes().first(static_cast<std::size_t>(rank.bytes));
}

/// Sends the description, then the bytes of every rank.
void send_copy(Channel& channel, const NodeCopy& copy) {
  channel.send(to_message(to_json(copy)));
  for (const NodeCopy::Rank& rank : copy.ranks) send_bytes(channel.fd(), bytes_of(rank));
}

bool is_whole(const NodeCopy& copy) {
  return std::all_of(copy.ranks.begin(), copy.ranks.end(),
                     [](const NodeCopy::Rank& rank) { return io::xxh3_hex(bytes_of(rank)) == rank.xxh3; });
}

/// Removes the oldest copy whose step is not `kept_by_all`.
NodeCopy evict(std::vector<NodeCopy>& copies, std::int64_t kept_by_all) {
  auto out = std::find_if(copies.begin(), copies.end(),
                          [&](const NodeCopy& copy) { return copy.step != kept_by_all; });
  if (out == copies.end()) out = copies.begin();
  NodeCopy copy = std::move(*out);
  copies.erase(out);
  return copy;
}

/// Receives a copy into the memory of `room` where the sizes match, else into new memory.
NodeCopy receive_copy(Channel& channel, NodeCopy room) {
  NodeCopy copy = copy_from(received(channel));
  for (std::size_t i = 0; i < copy.ranks.size(); ++i) {
    NodeCopy::Rank& rank = copy.ranks[i];
    const bool fits = i < room.ranks.size() &&
                      std::cmp_equal(room.ranks[i].memory->bytes().size(), rank.bytes) &&
                      room.ranks[i].memory.use_count() == 1;
    auto memory =
        fits ? std::const_pointer_cast<base::Segment>(room.ranks[i].memory)
             : std::make_shared<base::Segment>(base::Segment::create("trainerd-partner", rank.bytes));
    room.ranks.resize(std::max(room.ranks.size(), i + 1));
    room.ranks[i].memory.reset();
    receive_bytes(channel.fd(), memory->bytes());
    rank.memory = std::move(memory);
  }
  return copy;
}

}  // namespace

struct Partner::State {
  explicit State(Options o)
      : options(std::move(o)),
        server(base::listen_at({options.address, 0}), options.token,
               [](const std::string& line) { log::warn("partner copies: {}", line); }),
        over(::eventfd(0, EFD_CLOEXEC)),
        result_event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!over || !result_event)
      throw base::device_error("cannot make an eventfd: " + base::errno_text(errno));
    accepting = std::thread([this] { accept(); });
  }
  ~State() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(over.get(), &one, sizeof(one));
    accepting.join();
    close_outgoing();
    if (outgoing.joinable()) outgoing.join();
    {
      const std::lock_guard lock(mutex);
      for (const Visitor& visitor : visitors)  // if it is done, its descriptor may be reused
        if (!visitor.done) ::shutdown(visitor.fd, SHUT_RDWR);
    }
    for (Visitor& visitor : visitors) visitor.thread.join();
  }

  void accept();
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
  parallel::StoreServer server;
  base::UniqueFd over, result_event;
  std::thread accepting, outgoing;
  struct Visitor {
    int fd = -1;
    bool done = false;
    std::thread thread;
  };
  mutable std::mutex mutex;
  std::list<Visitor> visitors;
  std::map<std::int64_t, std::vector<NodeCopy>> kept;  ///< by node, oldest first
  std::int64_t attempt = 1;
  bool busy = false, stopped = false;
  int outgoing_fd = -1;
  std::optional<Sent> result;
};

void Partner::State::accept() {
  for (;;) {
    pollfd fds[2] = {{server.event_fd(), POLLIN, 0}, {over.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    while (auto joined = server.take_joined()) {
      base::watch_peer(joined->socket.get(), kPeerSeconds);
      const std::lock_guard lock(mutex);
      for (auto it = visitors.begin(); it != visitors.end();)
        if (it->done) it->thread.join(), it = visitors.erase(it);
        else ++it;
      Visitor& visitor = visitors.emplace_back();
      visitor.fd = joined->socket.get();
      try {
        visitor.thread = std::thread(
            [this, &visitor, channel = Channel(std::move(joined->socket)), text = joined->text]() mutable {
              try {
                serve(channel, text);
              } catch (const std::exception& error) {
                log::warn("partner copies: {}", error.what());
              }
              const std::lock_guard done(mutex);
              visitor.done = true;
            });
      } catch (const std::system_error& error) {  // the connection was closed with the thread's arguments
        visitors.pop_back();
        log::warn("partner copies: a connection was dropped, no thread can be started: {}", error.what());
      }
    }
  }
}

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
            base::Endpoint{state_->options.address, state_->server.port()}.text());
}

void Partner::send(NodeCopy copy, std::int64_t kept_by_all) {
  State& s = *state_;
  if (s.outgoing.joinable()) s.outgoing.join();
  {
    const std::lock_guard lock(s.mutex);
    base::check(!s.busy, "one copy is sent at a time");
    s.busy = true;
    s.stopped = false;
    copy.attempt = s.attempt;
  }
  s.outgoing = std::thread([&s, kept_by_all, copy = std::move(copy)]() mutable {
    Sent sent{.step = copy.step, .bytes = copy.bytes(), .seconds = 0, .problem = {}};
    const double start = base::monotonic_seconds();
    std::optional<Channel> channel;  // closed only when no other thread can shut it down
    try {
      for (NodeCopy::Rank& rank : copy.ranks) rank.xxh3 = io::xxh3_hex(bytes_of(rank));
      // `connect` registers the descriptor, so that `close_outgoing` can shut it down.
      channel.emplace(s.connect(json{{"type", "keep"}, {"node", copy.node}, {"step", copy.step}}));
      channel->send(to_message(json{
          {"type", "begin"}, {"node", copy.node}, {"attempt", copy.attempt}, {"kept_by_all", kept_by_all}}));
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
