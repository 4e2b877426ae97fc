#include "parallel/comm/gloo/gloo_engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/cpu/host_reduce.h"
#include "kernels/memory/memory.h"

namespace trainerd::parallel {

using kernels::align_up;
using kernels::host_copy;

namespace {

constexpr std::int64_t kFrameBytes = 8192;
constexpr std::int64_t kRecordBytes = align_up(static_cast<std::int64_t>(sizeof(OpRecord)));
// An all_reduce up to this size is complete once its frames have been exchanged.
constexpr std::int64_t kInlineBytes = kFrameBytes - kRecordBytes;
// How long a destructor waits for messages to leave.
constexpr double kFinishSeconds = 5;

}  // namespace

std::chrono::milliseconds gloo_timeout(double deadline) {
  const double left = 1e3 * (deadline - base::monotonic_seconds());
  return std::chrono::milliseconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(left)));
}

GlooEngine::GlooEngine(GlooWorld::Links& links, std::shared_ptr<gloo::Context> context, std::string name,
                       std::vector<std::int64_t> ranks, const GlooOptions& options)
    : links_(links),
      context_(std::move(context)),
      name_(std::move(name)),
      ranks_(std::move(ranks)),
      options_(options),
      frames_(make_round(kFrameBytes)),
      confirmations_(make_round(1)),
      inputs_(ranks_.size()),
      shares_(ranks_.size()),
      sent_(ranks_.size()),
      received_(ranks_.size()) {
  options_.chunk_bytes = align_up(std::max<std::int64_t>(1, options.chunk_bytes));
  scratch_.resize(ranks_.size() * static_cast<std::size_t>(options_.chunk_bytes));
}

GlooEngine::~GlooEngine() {
  if (sender_.joinable()) {
    {
      std::unique_lock lock(outgoing_mutex_);
      const std::chrono::duration<double> limit(kFinishSeconds);
      if (!outgoing_changed_.wait_for(lock, limit, [&] { return outgoing_.empty(); }))
        links_.end(name_of(rank()) + " left group " + name_ + " with messages under way");
      stop_ = true;
    }
    outgoing_changed_.notify_all();
    sender_.join();
  }
  // This rank's last messages must leave before its connections close.
  try {
    const double deadline = base::monotonic_seconds() + kFinishSeconds;
    for (Round* round : {&frames_, &confirmations_})
      for (int parity = 0; parity < 2 && !links_.ended(); ++parity) prepare(*round, {}, deadline);
  } catch (const std::exception&) {  // ended: the peers see that the connections close
  }
}

GlooEngine::Buffer GlooEngine::buffer(void* data, std::int64_t bytes) const {
  return context_->createUnboundBuffer(data, static_cast<std::size_t>(bytes));
}

// ---- errors

std::string GlooEngine::describe(const OpRecord& record) const {
  return parallel::describe(record) + " (number " + std::to_string(record.sequence) + " of group " + name_ +
         ")";
}

std::string GlooEngine::missing() const {
  const std::int64_t member = waiting_for_;
  return member < 0 ? "" : name_of(member);
}

void GlooEngine::fail(const std::string& text) const {
  links_.end(text);
  throw base::comm_error(text);
}

void GlooEngine::throw_if_ended(const OpRecord& record) const {
  if (links_.ended()) throw base::comm_error(describe(record) + " was ended: " + links_.why());
}

void GlooEngine::lost(std::int64_t member, const OpRecord& record, const std::string& why) const {
  if (links_.ended())
    throw base::comm_error(describe(record) + " was ended while it waited for " + name_of(member) + ": " +
                           links_.why());
  fail(describe(record) + " waited in vain for " + name_of(member) +
       ", which is late, gone, or has ended its connections; see " + "what became of it there (" + why + ")");
}

void GlooEngine::wait_received(gloo::transport::UnboundBuffer& b, std::int64_t from, const OpRecord& record,
                               double deadline) {
  waiting_for_ = from;
  try {
    const GlooWorld::Links::Waiting waiting(links_, b);
    if (b.waitRecv(gloo_timeout(deadline))) from = -1;
  } catch (const std::exception& error) {
    lost(from, record, error.what());
  }
  if (from >= 0) lost(from, record, "the wait was ended");
  waiting_for_ = -1;
}

void GlooEngine::wait_sent(gloo::transport::UnboundBuffer& b, std::int64_t to, const OpRecord& record,
                           double deadline) {
  waiting_for_ = to;
  try {
    const GlooWorld::Links::Waiting waiting(links_, b);
    if (b.waitSend(gloo_timeout(deadline))) to = -1;
  } catch (const std::exception& error) {
    lost(to, record, error.what());
  }
  if (to >= 0) lost(to, record, "the wait was ended");
  waiting_for_ = -1;
}

// ---- rounds

GlooEngine::Round GlooEngine::make_round(std::int64_t bytes) const {
  Round round;
  round.bytes = bytes;
  round.memory.resize(static_cast<std::size_t>((size() + 2) * bytes));
  for (std::int64_t i = 0; i < size(); ++i) {
    round.in.push_back(buffer(round.received(i), bytes));
    for (std::int64_t parity = 0; parity < 2; ++parity)
      round.out[static_cast<std::size_t>(parity)].push_back(buffer(round.received(size() + parity), bytes));
  }
  return round;
}

std::byte* GlooEngine::prepare(Round& round, const OpRecord& record, double deadline) {
  const std::uint64_t parity = round.count & 1;
  if (round.count++ >= 2)
    for (std::int64_t i = 0; i < size(); ++i)
      if (i != rank()) wait_sent(*round.out[parity][static_cast<std::size_t>(i)], i, record, deadline);
  return round.received(size() + static_cast<std::int64_t>(parity));
}

void GlooEngine::meet(Round& round, const OpRecord& record, double deadline) {
  const std::uint64_t parity = (round.count - 1) & 1;
  ++slot_;
  std::int64_t peer = 0;
  try {
    for (peer = 0; peer < size(); ++peer)
      if (peer != rank()) round.in[static_cast<std::size_t>(peer)]->recv(static_cast<int>(peer), slot_);
    for (peer = 0; peer < size(); ++peer)
      if (peer != rank())
        round.out[parity][static_cast<std::size_t>(peer)]->send(static_cast<int>(peer), slot_);
  } catch (const std::exception& error) {
    lost(peer, record, error.what());
  }
  for (std::int64_t i = 0; i < size(); ++i)
    if (i != rank()) wait_received(*round.in[static_cast<std::size_t>(i)], i, record, deadline);
  host_copy(round.received(rank()), round.received(size() + static_cast<std::int64_t>(parity)), round.bytes);
}

// ---- collectives

void GlooEngine::run(const Operation& op) {
  throw_if_ended(op.record);
  begin_seconds_ = base::monotonic_seconds();
  exchange_frames(op);
  switch (op.record.kind) {
    case OpKind::all_reduce: return all_reduce(op);
    case OpKind::all_gather:
      cut(op.x.bytes(), op.out.bytes());
      host_copy(op.out.data + rank() * op.x.bytes(), op.x.data, op.x.bytes());
      return gather_shares(op, op.out.data);
    case OpKind::reduce_scatter: cut(op.out.bytes(), op.x.bytes()); return reduce_shares(op, op.out.data);
    case OpKind::all_to_all: return all_to_all(op);
    case OpKind::broadcast: return broadcast(op);
    case OpKind::barrier: return;
    case OpKind::exchange: break;
  }
  base::check(false, "an exchange is not a collective");
}

void GlooEngine::exchange_frames(const Operation& op) {
  const double deadline = begin_seconds_ + options_.deadline_seconds;
  std::byte* mine = prepare(frames_, op.record, deadline);
  std::memcpy(mine, &op.record, sizeof(OpRecord));
  if (op.record.kind == OpKind::all_reduce && op.x.bytes() <= kInlineBytes)
    host_copy(mine + kRecordBytes, op.x.data, op.x.bytes());
  meet(frames_, op.record, deadline);
  for (std::int64_t i = 0; i < size(); ++i) {
    OpRecord other;
    std::memcpy(&other, frames_.received(i), sizeof(OpRecord));
    if (!op.record.agrees_with(other))
      fail("the ranks of a group called different operations: " + name_of(rank()) + " " +
           describe(op.record) + ", " + name_of(i) + " " + describe(other));
  }
}

// Pieces of zero bytes are skipped; both sides know their sizes.
void GlooEngine::transfer(const Operation& op, std::span<const Piece> sends,
                          std::span<const Piece> receives) {
  const double deadline = begin_seconds_ + options_.deadline_seconds;
  std::vector<Buffer> in, out;
  ++slot_;
  std::int64_t peer = 0;
  try {
    for (const Piece& p : receives) {
      peer = p.peer;
      in.push_back(buffer(p.data, p.bytes));
      if (p.bytes > 0) in.back()->recv(static_cast<int>(p.peer), slot_);
    }
    for (const Piece& p : sends) {
      peer = p.peer;
      out.push_back(buffer(p.data, p.bytes));
      if (p.bytes > 0) out.back()->send(static_cast<int>(p.peer), slot_);
    }
  } catch (const std::exception& error) {
    lost(peer, op.record, error.what());
  }
  for (std::size_t i = 0; i < in.size(); ++i)
    if (receives[i].bytes > 0) wait_received(*in[i], receives[i].peer, op.record, deadline);
  prepare(confirmations_, op.record, deadline);
  meet(confirmations_, op.record, deadline);
  for (std::size_t i = 0; i < out.size(); ++i)
    if (sends[i].bytes > 0) wait_sent(*out[i], sends[i].peer, op.record, deadline);
}

void GlooEngine::reduce(const Operation& op, std::byte* out, std::int64_t bytes) {
  kernels::host_reduce(
      op.record.reduce == ReduceOp::sum ? kernels::HostReduce::sum : kernels::HostReduce::max,
      op.record.dtype, op.record.accumulate, inputs_, out, bytes / kernels::size_of(op.record.dtype));
}

void GlooEngine::cut(std::int64_t part_bytes, std::int64_t bytes) {
  for (std::int64_t i = 0; i < size(); ++i) {
    const std::int64_t begin = std::min(i * part_bytes, bytes);
    shares_[static_cast<std::size_t>(i)] = {begin, std::min(part_bytes, bytes - begin)};
  }
}

void GlooEngine::reduce_shares(const Operation& op, std::byte* out) {
  const std::int64_t chunk = options_.chunk_bytes, longest = shares_.front().bytes;
  const Share mine = shares_[static_cast<std::size_t>(rank())];
  for (std::int64_t at = 0; at < longest; at += chunk) {
    const auto left = [&](const Share& s) { return std::clamp<std::int64_t>(s.bytes - at, 0, chunk); };
    sends_.clear();
    takes_.clear();
    for (std::int64_t i = 0; i < size(); ++i) {
      const Share& theirs = shares_[static_cast<std::size_t>(i)];
      std::byte* from_them = scratch_.data() + i * chunk;
      inputs_[static_cast<std::size_t>(i)] = i == rank() ? op.x.data + mine.begin + at : from_them;
      if (i == rank()) continue;
      takes_.push_back({i, from_them, left(mine)});
      sends_.push_back({i, op.x.data + theirs.begin + at, left(theirs)});
    }
    transfer(op, sends_, takes_);
    if (left(mine) > 0) reduce(op, out + at, left(mine));
  }
}

void GlooEngine::gather_shares(const Operation& op, std::byte* all) {
  sends_.clear();
  takes_.clear();
  const Share mine = shares_[static_cast<std::size_t>(rank())];
  for (std::int64_t i = 0; i < size(); ++i) {
    if (i == rank()) continue;
    const Share& theirs = shares_[static_cast<std::size_t>(i)];
    takes_.push_back({i, all + theirs.begin, theirs.bytes});
    sends_.push_back({i, all + mine.begin, mine.bytes});
  }
  transfer(op, sends_, takes_);
}

void GlooEngine::all_reduce(const Operation& op) {
  const std::int64_t bytes = op.x.bytes();
  if (bytes <= kInlineBytes) {
    for (std::int64_t i = 0; i < size(); ++i)
      inputs_[static_cast<std::size_t>(i)] = frames_.received(i) + kRecordBytes;
    return reduce(op, op.x.data, bytes);
  }
  cut(align_up((bytes + size() - 1) / size()), bytes);
  reduce_shares(op, op.x.data + shares_[static_cast<std::size_t>(rank())].begin);
  gather_shares(op, op.x.data);
}

void GlooEngine::all_to_all(const Operation& op) {
  const std::int64_t part = op.x.bytes() / size();
  std::vector<std::byte> copy;  // in place: sent data must not be overwritten before it has left
  std::byte* x = op.x.data;
  if (op.x.data == op.out.data) {
    copy.assign(op.x.data, op.x.data + op.x.bytes());
    x = copy.data();
  }
  host_copy(op.out.data + rank() * part, x + rank() * part, part);
  sends_.clear();
  takes_.clear();
  for (std::int64_t i = 0; i < size(); ++i)
    if (i != rank()) {
      sends_.push_back({i, x + i * part, part});
      takes_.push_back({i, op.out.data + i * part, part});
    }
  transfer(op, sends_, takes_);
}

void GlooEngine::broadcast(const Operation& op) {
  sends_.clear();
  takes_.clear();
  if (op.record.root != rank()) takes_.push_back({op.record.root, op.x.data, op.x.bytes()});
  else
    for (std::int64_t i = 0; i < size(); ++i)
      if (i != rank()) sends_.push_back({i, op.x.data, op.x.bytes()});
  transfer(op, sends_, takes_);
}

}  // namespace trainerd::parallel
