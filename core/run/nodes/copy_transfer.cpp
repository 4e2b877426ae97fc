#include "core/run/nodes/copy_transfer.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/run/wire/json_text.h"
#include "core/run/wire/slices_json.h"
#include "io/hash/hash.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

using nlohmann::json;

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

void send_bytes(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN)
      throw base::comm_error("the other agent took no part of a snapshot in time");
    if (n <= 0) throw base::comm_error("the connection ended while a snapshot was sent");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void receive_bytes(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN)
      throw base::comm_error("the other agent sent no part of a snapshot in time");
    if (n <= 0) throw base::comm_error("the connection ended while a snapshot came");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

}  // namespace

std::string refusal(const std::string& why) { return to_message(json{{"type", "refused"}, {"why", why}}); }

std::string received(Channel& channel) {
  std::optional<std::string> text = channel.receive();
  if (!text) throw base::comm_error("the connection ended");
  return *std::move(text);
}

std::span<const std::byte> bytes_of(const NodeCopy::Rank& rank) {
  return rank.memory->bytes().first(static_cast<std::size_t>(rank.bytes));
}

void send_outline(Channel& channel, const NodeCopy& copy) { channel.send(to_message(to_json(copy))); }

NodeCopy receive_outline(Channel& channel) { return copy_from(received(channel)); }

void send_copy(Channel& channel, const NodeCopy& copy) {
  send_outline(channel, copy);
  for (const NodeCopy::Rank& rank : copy.ranks) send_bytes(channel.fd(), bytes_of(rank));
}

bool is_whole(const NodeCopy& copy) {
  return std::all_of(copy.ranks.begin(), copy.ranks.end(),
                     [](const NodeCopy::Rank& rank) { return io::xxh3_hex(bytes_of(rank)) == rank.xxh3; });
}

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

}  // namespace trainerd::core::run
