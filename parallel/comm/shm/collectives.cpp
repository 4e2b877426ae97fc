#include "parallel/comm/shm/collectives.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/seconds_text.h"
#include "kernels/cpu/host_reduce.h"
#include "kernels/memory/memory.h"

namespace trainerd::parallel {

using kernels::align_up;
using kernels::host_copy;
using kernels::kAlignment;

namespace {

// Up to this size every rank sums everything itself: more additions, but one meeting less.
constexpr std::int64_t kSmallBytes = 16 * 1024;

// At least one step even for zero bytes: the ranks meet in every collective.
std::int64_t steps_of(std::int64_t bytes, std::int64_t step_bytes) {
  return std::max<std::int64_t>(1, (bytes + step_bytes - 1) / step_bytes);
}

}  // namespace

Collectives::Collectives(const GroupContext& context, Mailbox& mailbox)
    : context_(context), mailbox_(mailbox), inputs_(static_cast<std::size_t>(context.size())) {}

void Collectives::run(const Operation& op) {
  context_.throw_if_ended(op.record);
  context_.group.member(context_.rank).posted[op.record.sequence & 1] = op.record;
  compared_ = false;
  switch (op.record.kind) {
    case OpKind::all_reduce: return op.record.bytes <= kSmallBytes ? all_reduce_small(op) : all_reduce(op);
    case OpKind::all_gather: return all_gather(op);
    case OpKind::reduce_scatter: return reduce_scatter(op);
    case OpKind::all_to_all: return all_to_all(op);
    case OpKind::broadcast: return broadcast(op);
    case OpKind::barrier: return meet(op);
    case OpKind::exchange: break;
  }
  base::check(false, "an exchange is not a collective");
}

void Collectives::meet(const Operation& op) {
  const auto size = static_cast<std::uint64_t>(context_.size());
  const std::uint64_t meeting = meeting_.load(std::memory_order_relaxed) + 1;
  meeting_.store(meeting, std::memory_order_relaxed);
  std::atomic<std::uint64_t>& arrivals = context_.group.arrivals();
  context_.group.member(context_.rank).arrived.store(meeting, std::memory_order_relaxed);
  // No rank enters the next meeting before this one is complete, so the count identifies the last rank.
  if (arrivals.fetch_add(1, std::memory_order_acq_rel) + 1 == meeting * size) {
    for (std::int64_t i = 0; i < context_.size(); ++i)
      if (i != context_.rank) notify(context_.notifier(i));
  } else {
    const auto complete = [&] { return arrivals.load(std::memory_order_acquire) >= meeting * size; };
    const double begin = base::monotonic_seconds();
    const bool in_time =
        wait_on(context_.notifier(), begin + context_.deadline_seconds, context_.spin_seconds, [&] {
          if (complete()) return true;
          mailbox_.flush();
          return context_.world.aborted();
        });
    if (!complete()) {
      const std::string missing = context_.missing(meeting);
      if (in_time) context_.throw_ended(op.record, missing);
      context_.fail(context_.describe(op.record) + " waited " +
                    base::seconds_text(base::monotonic_seconds() - begin) + " in vain for " + missing +
                    "; see what became of them there");
    }
  }
  if (!compared_) compare_records(op.record);
}

// Each rank compares its record with all others. So every rank detects a mismatch, and none waits for a rank
// that has left.
void Collectives::compare_records(const OpRecord& mine) {
  for (std::int64_t i = 0; i < context_.size(); ++i) {
    const OpRecord& other = context_.group.member(i).posted[mine.sequence & 1];
    if (!mine.agrees_with(other))
      context_.fail("the ranks of a group called different operations: rank " +
                    std::to_string(context_.world_rank(context_.rank)) + " " + context_.describe(mine) +
                    ", rank " + std::to_string(context_.world_rank(i)) + " " + context_.describe(other));
  }
  compared_ = true;
}

void Collectives::reduce(const Operation& op, std::byte* out, std::int64_t bytes) {
  kernels::host_reduce(
      op.record.reduce == ReduceOp::sum ? kernels::HostReduce::sum : kernels::HostReduce::max,
      op.record.dtype, op.record.accumulate, inputs_, out, bytes / kernels::size_of(op.record.dtype));
}

void Collectives::all_reduce_small(const Operation& op) {
  const std::int64_t bytes = op.x.bytes(), chunk = context_.group.shape().chunk_bytes;
  for (std::int64_t at = 0, step = 0; step < steps_of(bytes, chunk); ++step, at += chunk) {
    const std::int64_t length = std::min(chunk, bytes - at);
    host_copy(slot(context_.rank), op.x.data + at, length);
    meet(op);
    for (std::int64_t i = 0; i < context_.size(); ++i) inputs_[static_cast<std::size_t>(i)] = slot(i);
    reduce(op, op.x.data + at, length);
    ++step_;
  }
}

// Each rank reduces its share of a chunk. It reads the others' summands from their slots and its own from the
// tensor, and leaves the result in its own slot, in its own share, where no summand is needed. One meeting
// serves two chunks: the next one's summands and this one's results. (A late rank may still read the previous
// chunk's results from a slot while its owner fills it with the next chunk. It reads the owner's share, which
// is not written before the next meeting.)
void Collectives::all_reduce(const Operation& op) {
  const std::int64_t size = context_.size(), rank = context_.rank, bytes = op.x.bytes();
  // All chunks have the same length, so that a share is at the same place in each.
  const std::int64_t most = context_.group.shape().chunk_bytes, at_least = steps_of(bytes, most);
  const std::int64_t chunk = align_up((bytes + at_least - 1) / at_least, kAlignment * size);
  const std::int64_t chunks = steps_of(bytes, chunk), each = chunk / size;
  struct Range {
    std::int64_t begin, bytes;
  };
  const auto share = [&](std::int64_t c, std::int64_t i) -> Range {
    const std::int64_t length = std::min(chunk, bytes - c * chunk), begin = std::min(i * each, length);
    return {begin, std::min(each, length - begin)};
  };
  const auto fill = [&](std::int64_t c) {
    std::byte* mine = context_.group.slot(step_ + static_cast<std::uint64_t>(c), rank);
    for (std::int64_t i = 0; i < size; ++i)
      if (const Range r = share(c, i); i != rank)
        host_copy(mine + r.begin, op.x.data + c * chunk + r.begin, r.bytes);
  };
  fill(0);
  meet(op);
  for (std::int64_t c = 0; c < chunks; ++c) {
    const std::uint64_t parity = step_ + static_cast<std::uint64_t>(c);
    const Range mine = share(c, rank);
    std::byte* own = op.x.data + c * chunk + mine.begin;
    for (std::int64_t i = 0; i < size; ++i)
      inputs_[static_cast<std::size_t>(i)] = i == rank ? own : context_.group.slot(parity, i) + mine.begin;
    reduce(op, own, mine.bytes);
    host_copy(context_.group.slot(parity, rank) + mine.begin, own, mine.bytes);
    if (c + 1 < chunks) fill(c + 1);
    meet(op);
    for (std::int64_t i = 0; i < size; ++i)
      if (const Range r = share(c, i); i != rank)
        host_copy(op.x.data + c * chunk + r.begin, context_.group.slot(parity, i) + r.begin, r.bytes);
  }
  step_ += static_cast<std::uint64_t>(chunks);
}

void Collectives::all_gather(const Operation& op) {
  const std::int64_t bytes = op.x.bytes(), chunk = context_.group.shape().chunk_bytes;
  host_copy(op.out.data + context_.rank * bytes, op.x.data, bytes);
  for (std::int64_t at = 0, step = 0; step < steps_of(bytes, chunk); ++step, at += chunk) {
    const std::int64_t length = std::min(chunk, bytes - at);
    host_copy(slot(context_.rank), op.x.data + at, length);
    meet(op);
    for (std::int64_t i = 0; i < context_.size(); ++i)
      if (i != context_.rank) host_copy(op.out.data + i * bytes + at, slot(i), length);
    ++step_;
  }
}

// Slot layout: at i * piece, the summand for member i.
void Collectives::reduce_scatter(const Operation& op) {
  const std::int64_t rank = context_.rank, part = op.out.bytes(),
                     piece = context_.group.shape().chunk_bytes / context_.size();
  for (std::int64_t at = 0, step = 0; step < steps_of(part, piece); ++step, at += piece) {
    const std::int64_t length = std::min(piece, part - at);
    for (std::int64_t i = 0; i < context_.size(); ++i)
      if (i != rank) host_copy(slot(rank) + i * piece, op.x.data + i * part + at, length);
    meet(op);
    for (std::int64_t i = 0; i < context_.size(); ++i)
      inputs_[static_cast<std::size_t>(i)] =
          i == rank ? op.x.data + rank * part + at : slot(i) + rank * piece;
    reduce(op, op.out.data + at, length);
    ++step_;
  }
}

// Slot layout: at i * piece, the data for member i.
void Collectives::all_to_all(const Operation& op) {
  const std::int64_t rank = context_.rank, part = op.x.bytes() / context_.size();
  const std::int64_t piece = context_.group.shape().chunk_bytes / context_.size();
  host_copy(op.out.data + rank * part, op.x.data + rank * part, part);
  for (std::int64_t at = 0, step = 0; step < steps_of(part, piece); ++step, at += piece) {
    const std::int64_t length = std::min(piece, part - at);
    for (std::int64_t i = 0; i < context_.size(); ++i)
      if (i != rank) host_copy(slot(rank) + i * piece, op.x.data + i * part + at, length);
    meet(op);
    for (std::int64_t i = 0; i < context_.size(); ++i)
      if (i != rank) host_copy(op.out.data + i * part + at, slot(i) + rank * piece, length);
    ++step_;
  }
}

void Collectives::broadcast(const Operation& op) {
  const std::int64_t bytes = op.x.bytes(), chunk = context_.group.shape().chunk_bytes, root = op.record.root;
  for (std::int64_t at = 0, step = 0; step < steps_of(bytes, chunk); ++step, at += chunk) {
    const std::int64_t length = std::min(chunk, bytes - at);
    if (context_.rank == root) host_copy(slot(root), op.x.data + at, length);
    meet(op);
    if (context_.rank != root) host_copy(op.x.data + at, slot(root), length);
    ++step_;
  }
}

}  // namespace trainerd::parallel
