#include "parallel/comm/shm/region.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/base/error.h"
#include "kernels/memory/memory.h"
#include "parallel/comm/flight_recorder.h"

namespace trainerd::parallel {

using kernels::align_up;
using kernels::kAlignment;

// ---- world

struct WorldRegion::Head {
  enum State : std::uint32_t { running, ending, ended };  ///< ending: the text is being written
  alignas(64) std::atomic<std::uint32_t> state;
  std::array<char, 508> text;
};

std::int64_t WorldRegion::bytes(std::int64_t ranks) {
  return align_up(static_cast<std::int64_t>(sizeof(Head))) +
         ranks * static_cast<std::int64_t>(sizeof(Notifier));
}

WorldRegion::Head& WorldRegion::head() const { return *reinterpret_cast<Head*>(base_); }

Notifier& WorldRegion::notifier(std::int64_t rank) const {
  return reinterpret_cast<Notifier*>(base_ + align_up(static_cast<std::int64_t>(sizeof(Head))))[rank];
}

bool WorldRegion::aborted() const { return head().state.load(std::memory_order_acquire) != Head::running; }

std::string WorldRegion::abort_text() const {
  // Writing takes microseconds, unless the writer died meanwhile.
  for (int i = 0; i < 20 && head().state.load(std::memory_order_acquire) != Head::ended; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (head().state.load(std::memory_order_acquire) != Head::ended)
    return "a rank died while it ended the run";
  return head().text.data();
}

void WorldRegion::abort(std::string_view why) const {
  std::uint32_t state = Head::running;
  if (head().state.compare_exchange_strong(state, Head::ending)) {
    put_text(head().text, why);
    head().state.store(Head::ended, std::memory_order_release);
  }
  for (std::int64_t rank = 0; rank < ranks_; ++rank) parallel::notify(notifier(rank));
}

// ---- group

namespace {

// Layout: arrivals; members; slots[parity][rank]; rings; ring data.
struct Offsets {
  std::int64_t members = kAlignment, slots = 0, rings = 0, ring_data = 0, end = 0;
};

Offsets offsets_of(const GroupShape& shape) {
  Offsets o;
  const std::int64_t pairs = shape.ring_bytes > 0 ? shape.size * (shape.size - 1) : 0;
  o.slots = o.members + shape.size * static_cast<std::int64_t>(sizeof(GroupRegion::Member));
  o.rings = o.slots + 2 * shape.size * shape.chunk_bytes;
  o.ring_data = o.rings + pairs * static_cast<std::int64_t>(sizeof(GroupRegion::Ring));
  o.end = o.ring_data + pairs * shape.ring_bytes;
  return o;
}

}  // namespace

GroupShape GroupRegion::rounded(const GroupShape& shape) {
  GroupShape r = shape;
  // A chunk is divided into one aligned share per rank.
  r.chunk_bytes = align_up(std::max<std::int64_t>(shape.chunk_bytes, 1), kAlignment * shape.size);
  // Room for a message's header and some data.
  if (shape.ring_bytes > 0) r.ring_bytes = align_up(std::max<std::int64_t>(shape.ring_bytes, 4 * kAlignment));
  return r;
}

std::int64_t GroupRegion::bytes(const GroupShape& shape) { return offsets_of(shape).end; }

GroupRegion::GroupRegion(std::byte* base, const GroupShape& shape) : base_(base), shape_(shape) {
  base::check(
      rounded(shape).chunk_bytes == shape.chunk_bytes && rounded(shape).ring_bytes == shape.ring_bytes,
      "the shape of a group is rounded before it is laid out");
}

GroupRegion::Member& GroupRegion::member(std::int64_t rank) const {
  return reinterpret_cast<Member*>(base_ + offsets_of(shape_).members)[rank];
}

std::byte* GroupRegion::slot(std::uint64_t parity, std::int64_t rank) const {
  return base_ + offsets_of(shape_).slots +
         (static_cast<std::int64_t>(parity & 1) * shape_.size + rank) * shape_.chunk_bytes;
}

std::int64_t GroupRegion::ring_index(std::int64_t from, std::int64_t to) const {
  base::check(
      from != to && from >= 0 && to >= 0 && from < shape_.size && to < shape_.size && shape_.ring_bytes > 0,
      "a ring joins two different ranks of a group that exchanges");
  return from * (shape_.size - 1) + (to < from ? to : to - 1);
}

GroupRegion::Ring& GroupRegion::ring(std::int64_t from, std::int64_t to) const {
  return reinterpret_cast<Ring*>(base_ + offsets_of(shape_).rings)[ring_index(from, to)];
}

std::byte* GroupRegion::ring_data(std::int64_t from, std::int64_t to) const {
  return base_ + offsets_of(shape_).ring_data + ring_index(from, to) * shape_.ring_bytes;
}

}  // namespace trainerd::parallel
