#include "parallel/comm/shm/mailbox.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/seconds_text.h"
#include "kernels/cpu/host_reduce.h"
#include "kernels/memory/memory.h"

namespace trainerd::parallel {
namespace {

using kernels::align_up;
using kernels::host_copy;

// A message in a ring: its record, then its data, each padded to kAlignment.
constexpr std::int64_t kHeaderBytes = align_up(static_cast<std::int64_t>(sizeof(OpRecord)));

// Copy between linear memory and a ring of `capacity` bytes, at position `at` of the ring's stream.
void copy_in(std::byte* ring, std::int64_t capacity, std::uint64_t at, const std::byte* from,
             std::int64_t bytes) {
  const auto begin = static_cast<std::int64_t>(at % static_cast<std::uint64_t>(capacity));
  const std::int64_t first = std::min(bytes, capacity - begin);
  host_copy(ring + begin, from, first);
  host_copy(ring, from + first, bytes - first);
}
void copy_out(std::byte* to, const std::byte* ring, std::int64_t capacity, std::uint64_t at,
              std::int64_t bytes) {
  const auto begin = static_cast<std::int64_t>(at % static_cast<std::uint64_t>(capacity));
  const std::int64_t first = std::min(bytes, capacity - begin);
  host_copy(to, ring + begin, first);
  host_copy(to + first, ring, bytes - first);
}

}  // namespace

Mailbox::Mailbox(const GroupContext& context)
    : context_(context), peers_(static_cast<std::size_t>(context.size())) {}

// Writes as much of `bytes`, padded to kAlignment, as there is room for. Returns how many of `bytes` were
// written.
std::int64_t Mailbox::push(std::int64_t to, const std::byte* from, std::int64_t bytes) {
  GroupRegion::Ring& out = context_.group.ring(context_.rank, to);
  const std::int64_t capacity = context_.group.shape().ring_bytes;
  const std::uint64_t written = out.written.load(std::memory_order_relaxed);
  const std::int64_t room = capacity - static_cast<std::int64_t>(written - out.read.load());
  const std::int64_t padded = std::min(room, align_up(bytes)), n = std::min(padded, bytes);
  copy_in(context_.group.ring_data(context_.rank, to), capacity, written, from, n);
  out.written.store(written + static_cast<std::uint64_t>(padded), std::memory_order_release);
  return n;
}

bool Mailbox::send(std::int64_t to, const kernels::Tensor& x, const char* label) {
  const std::lock_guard lock(send_mutex_);
  Peer& p = peer(to);
  const OpRecord record = message_record(x, label, ++p.sent);
  alignas(64) std::array<std::byte, kHeaderBytes> header{};
  std::memcpy(header.data(), &record, sizeof(record));
  std::int64_t header_done = 0, done = 0;
  if (p.aside.empty()) {
    header_done = push(to, header.data(), kHeaderBytes);
    if (header_done == kHeaderBytes) done = push(to, x.data, x.bytes());
    notify(context_.notifier(to));
  }
  if (header_done == kHeaderBytes && done == x.bytes()) return true;
  // The caller may reuse its buffer when this returns, so the rest is copied.
  std::vector<std::byte> rest(static_cast<std::size_t>(kHeaderBytes - header_done + x.bytes() - done));
  host_copy(rest.data(), header.data() + header_done, kHeaderBytes - header_done);
  host_copy(rest.data() + kHeaderBytes - header_done, x.data + done, x.bytes() - done);
  p.aside.push_back(std::move(rest));
  anything_aside_ = true;
  return false;
}

// True if nothing is left aside for this peer.
bool Mailbox::push_aside(std::int64_t to) {
  Peer& p = peer(to);
  bool moved = false;
  while (!p.aside.empty()) {
    const std::vector<std::byte>& first = p.aside.front();
    const std::int64_t left = static_cast<std::int64_t>(first.size()) - p.aside_done;
    // Set before checking for room, so that room made after the check causes a notification.
    context_.group.ring(context_.rank, to).wants_room.store(1);
    const std::int64_t n = push(to, first.data() + p.aside_done, left);
    moved = moved || n > 0;
    if (n < left) {
      p.aside_done += n;
      break;
    }
    p.aside.pop_front();
    p.aside_done = 0;
  }
  if (moved) notify(context_.notifier(to));
  if (p.aside.empty()) context_.group.ring(context_.rank, to).wants_room.store(0);
  return p.aside.empty();
}

bool Mailbox::flush() {
  if (!anything_aside_) return true;
  const std::lock_guard lock(send_mutex_);
  bool all = true;
  for (std::int64_t to = 0; to < context_.size(); ++to)
    if (to != context_.rank && !peer(to).aside.empty()) all = push_aside(to) && all;
  if (all) anything_aside_ = false;
  return all || context_.world.aborted();
}

Mailbox::Ticket Mailbox::post_receive(std::int64_t from, const kernels::Tensor& x, const char* label) {
  base::check(from != context_.rank && from >= 0 && from < context_.size(),
              "a message comes from another rank of the group");
  Peer& p = peer(from);
  const std::uint64_t index = p.received + p.receives.size();
  p.receives.push_back({.record = message_record(x, label, index + 1), .data = x.data});
  return {from, index};
}

void Mailbox::check_header(std::int64_t from, const Receive& receive, const OpRecord& sent) const {
  const OpRecord& mine = receive.record;
  // Labels may differ: the two sides of an exchange may name it differently.
  if (sent.sequence != mine.sequence || sent.bytes != mine.bytes || sent.dtype != mine.dtype)
    context_.fail("a message is not what its receiver expects: rank " +
                  std::to_string(context_.world_rank(from)) + " sent " + context_.describe(sent) + ", rank " +
                  std::to_string(context_.world_rank(context_.rank)) + " receives " +
                  context_.describe(mine));
}

void Mailbox::take(std::int64_t from) {
  Peer& p = peer(from);
  if (p.receives.empty()) return;
  GroupRegion::Ring& ring_from = context_.group.ring(from, context_.rank);
  const std::byte* data = context_.group.ring_data(from, context_.rank);
  const std::int64_t capacity = context_.group.shape().ring_bytes;
  std::uint64_t read = ring_from.read.load(std::memory_order_relaxed);
  const std::uint64_t begin = read;
  auto there = static_cast<std::int64_t>(ring_from.written.load(std::memory_order_acquire) - read);
  while (!p.receives.empty()) {
    Receive& r = p.receives.front();
    if (!r.header_read) {
      if (there < kHeaderBytes) break;
      OpRecord sent;
      std::array<std::byte, sizeof(OpRecord)> bytes;
      copy_out(bytes.data(), data, capacity, read, sizeof(OpRecord));
      std::memcpy(&sent, bytes.data(), sizeof(OpRecord));
      check_header(from, r, sent);
      r.header_read = true;
      read += static_cast<std::uint64_t>(kHeaderBytes);
      there -= kHeaderBytes;
    }
    const std::int64_t left = r.record.bytes - r.done_bytes;
    const std::int64_t padded = std::min(there, align_up(left)), n = std::min(padded, left);
    if (r.data != nullptr) copy_out(r.data + r.done_bytes, data, capacity, read, n);
    r.done_bytes += n;
    read += static_cast<std::uint64_t>(padded);
    there -= padded;
    if (r.done_bytes < r.record.bytes) break;
    p.receives.pop_front();
    ++p.received;
  }
  if (read == begin) return;
  ring_from.read.store(read);
  if (ring_from.wants_room.load() != 0) notify(context_.notifier(from));
}

void Mailbox::wait(std::span<const Ticket> receives, double deadline_seconds) {
  const double begin = base::monotonic_seconds();
  for (const Ticket& ticket : receives) {
    const bool in_time = wait_on(context_.notifier(), begin + deadline_seconds, context_.spin_seconds, [&] {
      take(ticket.peer);
      if (filled(ticket)) return true;
      flush();
      return context_.world.aborted();
    });
    if (filled(ticket)) continue;
    const OpRecord& record = peer(ticket.peer).receives[ticket.index - peer(ticket.peer).received].record;
    const std::string sender = "rank " + std::to_string(context_.world_rank(ticket.peer));
    if (in_time) context_.throw_ended(record, sender);
    context_.fail(context_.describe(record) + " waited " +
                  base::seconds_text(base::monotonic_seconds() - begin) + " in vain for a message from " +
                  sender + "; see what became of it there");
  }
}

void Mailbox::drop(const Ticket& ticket) {
  Peer& p = peer(ticket.peer);
  if (!filled(ticket)) p.receives[ticket.index - p.received].data = nullptr;
}

}  // namespace trainerd::parallel
