#include "parallel/data/grad_reducer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::parallel {

using namespace kernels;

namespace {

// Bytes of earlier sums that are copied from host memory at once; not more than a bucket's.
constexpr std::int64_t kPieceBytes = std::int64_t{32} << 20;

}  // namespace

GradReducer::GradReducer(const DataParallelGroups& groups, const BucketLayout& plan,
                         std::vector<GradUnit> units, bool sharded, const GradDtypes& dtypes,
                         Backend& backend, Arena& persistent)
    : groups_(groups),
      plan_(plan),
      units_(std::move(units)),
      sharded_(sharded),
      dtypes_(dtypes),
      backend_(backend),
      slot_of_unit_(plan.units.size(), nullptr),
      reduced_(plan.units.size(), 0) {
  for (const GradUnit& unit : units_) expected_.push_back(unit.reductions);
  base::check(units_.size() == plan_.units.size(), "every unit's gradients live somehow");
  if (dtypes.exchanged() && plan_.parts > 1 && !plan_.buckets.empty()) take_staging(persistent);
  if (sharded_) {
    parts_ = persistent.take(dtypes.held, {plan_.shard_elements()}, MemoryTerm::gradients);
    take_rings(dtypes.held, persistent);
  } else {
    flat_ = persistent.take(dtypes.held, {plan_.elements}, MemoryTerm::gradients);
    pending_.reserve(plan_.buckets.size());
  }
}

GradReducer::GradReducer(const DataParallelGroups& groups, const BucketLayout& plan,
                         std::vector<GradUnit> units, const GradDtypes& dtypes, Backend& backend,
                         Arena& persistent, const HostLink& link, Arena& host)
    : groups_(groups),
      plan_(plan),
      units_(std::move(units)),
      sharded_(true),
      dtypes_(dtypes),
      backend_(backend),
      link_(link),
      chain_(backend.make_stream("gradients", &no_scratch_)),
      stored_(plan.units.size()),
      parts_(host.take(dtypes.held, {plan.shard_elements()}, MemoryTerm::gradients)),
      slot_of_unit_(plan.units.size(), nullptr),
      reduced_(plan.units.size(), 0) {
  for (const GradUnit& unit : units_) expected_.push_back(unit.reductions);
  base::check(units_.size() == plan_.units.size(), "every unit's gradients live somehow");
  base::check(!groups_.replicas, "replicas keep their gradients on devices");
  if (dtypes.exchanged() && plan_.parts > 1 && !plan_.buckets.empty()) take_staging(persistent);
  take_rings(dtypes.held, persistent);
  std::int64_t piece = 0;
  for (const Bucket& bucket : plan_.buckets) piece = std::max(piece, bucket.size / plan_.parts);
  piece = std::min(kPieceBytes / size_of(dtypes.held), piece);
  for (Tensor& buffer : pieces_) buffer = persistent.take(dtypes.held, {piece}, MemoryTerm::workspace);
}

void GradReducer::take_staging(Arena& persistent) {
  // In the background a whole unit is in progress while the next unit's gradients are computed. Otherwise one
  // bucket is.
  std::int64_t most = 0;
  if (groups_.gradients == Progress::background)
    for (const Unit& unit : plan_.units) most = std::max(most, unit.size);
  else
    for (const Bucket& bucket : plan_.buckets) most = std::max(most, bucket.size);
  rounded_inside_.emplace(*groups_.inner, dtypes_, most, backend_, persistent);
  if (groups_.outer != nullptr)
    rounded_outside_.emplace(*groups_.outer, dtypes_, most / groups_.inner->size(), backend_, persistent);
}

void GradReducer::take_rings(DType dtype, Arena& persistent) {
  // One unit is reduced in the background while the next unit's gradients are computed.
  const std::size_t slots = groups_.gradients == Progress::background ? 2 : 1;
  const auto add_ring = [&](std::int64_t elements, std::size_t count, bool adds) {
    Ring& ring = rings_.emplace_back();
    for (std::size_t i = 0; i < count; ++i) {
      Slot& slot = ring.slots.emplace_back();
      slot.whole = persistent.take(dtype, {elements}, MemoryTerm::gradients);
      if (offloaded()) slot.complete = backend_.make_event();
      if (adds || (offloaded() && plan_.parts > 1))
        slot.sums = persistent.take(dtype, {elements / plan_.parts}, MemoryTerm::gradients);
    }
  };
  std::array<std::int64_t, 2> largest{};
  std::array<bool, 2> adds{};
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].ring == GradUnit::Ring::own) continue;
    const auto ring = static_cast<std::size_t>(units_[u].ring);
    largest[ring] = std::max(largest[ring], plan_.units[u].size);
    adds[ring] = adds[ring] || (units_[u].reductions > 1 && !adds_in_place() && !offloaded());
  }
  for (std::size_t ring = 0; ring < 2; ++ring) add_ring(largest[ring], slots, adds[ring]);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const bool own = units_[u].ring == GradUnit::Ring::own;
    ring_of_unit_.push_back(own ? rings_.size() : static_cast<std::size_t>(units_[u].ring));
    if (own) add_ring(plan_.units[u].size, 1, units_[u].reductions > 1 && !adds_in_place() && !offloaded());
  }
}

Tensor GradReducer::part(std::size_t bucket) const {
  const Bucket mine = plan_.part(bucket, groups_.part());
  return sharded_ ? parts_.rows(plan_.shard_begin(bucket), mine.size) : flat_.rows(mine.begin, mine.size);
}

void GradReducer::expect(std::size_t unit, std::int64_t reductions) {
  base::check(reductions >= 1 && reductions <= units_[unit].reductions,
              "a unit is reduced at most as often as was said at first");
  expected_[unit] = reductions;
}

void GradReducer::begin_step() {
  base::check(pending_.empty() && std::count(slot_of_unit_.begin(), slot_of_unit_.end(), nullptr) ==
                                      static_cast<std::ptrdiff_t>(slot_of_unit_.size()),
              "the gradients of the step before are reduced");
  std::fill(reduced_.begin(), reduced_.end(), 0);
}

Tensor GradReducer::open(Stream& stream, std::size_t unit) {
  const Unit& u = plan_.units[unit];
  if (!sharded_) return flat_.rows(u.begin, u.size);
  if (slot_of_unit_[unit] == nullptr) {
    Ring& ring = rings_[ring_of_unit_[unit]];
    Slot& slot = ring.slots[ring.next];
    ring.next = (ring.next + 1) % ring.slots.size();
    base::check(std::find(slot_of_unit_.begin(), slot_of_unit_.end(), &slot) == slot_of_unit_.end(),
                "units of a ring are reduced one after the other");
    settle(stream, slot.pending);
    land(stream, slot);
    slot_of_unit_[unit] = &slot;
  }
  return slot_of_unit_[unit]->whole.rows(0, u.size);
}

template <class Do>
void GradReducer::for_pending(const Do& act) {
  for (Ring& ring : rings_)
    for (std::size_t i = 0; i < ring.slots.size(); ++i)
      act(ring.slots[(ring.next + i) % ring.slots.size()].pending);
  act(pending_);
}

void GradReducer::reduce(Stream& compute, std::size_t unit) {
  const Tensor whole = open(compute, unit);
  const Unit& u = plan_.units[unit];
  const bool adds = reduced_[unit] > 0, last = ++reduced_[unit] == expected_[unit];
  base::check(reduced_[unit] <= expected_[unit], "a unit is reduced as often as was said");
  Slot* slot = std::exchange(slot_of_unit_[unit], nullptr);
  if (plan_.parts == 1 && !offloaded()) return;
  std::shared_ptr<Work> fetched;
  if (offloaded()) {
    // Before the sum over ranks, which it does not need.
    if (adds) stored_[unit]->wait(*chain_), fetched = fetch(unit, 0);
    backend_.record(compute, *slot->complete);
    backend_.wait(*chain_, *slot->complete);
  }
  if (plan_.parts == 1) return store(*slot, unit, whole, std::move(fetched));
  Stream& stream = offloaded() ? *chain_ : compute;
  // With two levels, continue at the outer level what is done at the inner one, which then serves this unit.
  if (groups_.outer != nullptr)
    for_pending([&](std::vector<Pending>& pending) {
      for (Pending& p : pending)
        if (const bool gathers = p.hop == Hop::outside && groups_.replicas && rounded_outside_;
            p.work && (p.hop == Hop::inside || gathers))
          advance(stream, p);
    });
  std::vector<Pending>& pending = slot == nullptr ? pending_ : slot->pending;
  for (std::size_t i = u.buckets; i-- > 0;) {
    const std::size_t b = u.first_bucket + i;
    const std::int64_t at = plan_.buckets[b].begin - u.begin, size = plan_.buckets[b].size;
    Pending p{.serial = started_++,
              .bucket = b,
              .whole = whole.rows(at, size),
              .out = part(b),
              .mode = adds && adds_in_place() ? WriteMode::accumulate : WriteMode::assign,
              .last = last,
              .hop = Hop::inside,
              .work = {},
              .staged = {},
              .slot = offloaded() ? slot : nullptr};
    if (offloaded() || (adds && !adds_in_place()))
      p.out = slot->sums.rows(at / plan_.parts, size / plan_.parts);
    if (rounded_inside_) {
      send_rounded(stream, p.whole, p);
    } else {
      const Tensor out = groups_.shards_outside() ? groups_.piece(p.whole) : p.out;
      p.work = groups_.inner->reduce_scatter(stream, p.whole, out, options());
    }
    pending.push_back(std::move(p));
  }
  if (!offloaded()) return;
  settle(stream, pending);
  store(*slot, unit, slot->sums.rows(0, u.size / plan_.parts), std::move(fetched));
}

std::shared_ptr<Work> GradReducer::fetch(std::size_t unit, std::int64_t at) {
  const Unit& u = plan_.units[unit];
  const std::int64_t all = u.size / plan_.parts, piece = pieces_[0].numel();
  if (at >= all) return nullptr;
  return link_.from->all_gather(
      *chain_, parts_.rows(plan_.shard_begin(u.first_bucket) + at, std::min(piece, all - at)),
      piece_of(at).rows(0, std::min(piece, all - at)), copy_options("gradients"));
}

/// While one piece of the earlier sums is added, the next one is copied from host memory.
void GradReducer::store(Slot& slot, std::size_t unit, const Tensor& sums, std::shared_ptr<Work> fetched) {
  Stream& s = *chain_;
  const std::int64_t begin = plan_.shard_begin(plan_.units[unit].first_bucket), all = sums.numel(),
                     piece = fetched ? pieces_[0].numel() : all;
  for (std::int64_t at = 0; at < all; at += piece) {
    const Tensor sum = sums.rows(at, std::min(piece, all - at));
    if (fetched) {
      std::shared_ptr<Work> next = fetch(unit, at + piece);
      fetched->wait(s);
      backend_.add(s, {piece_of(at).rows(0, sum.numel()), sum, sum});
      if (next) fetched = std::move(next);
    }
    stored_[unit] =
        link_.to->all_gather(s, sum, parts_.rows(begin + at, sum.numel()), copy_options("gradients"));
  }
  // Copies are made in order, and each follows the one that it adds to.
  slot.under_way.push_back(stored_[unit]);
}

void GradReducer::land(Stream& stream, Slot& slot) {
  for (const std::shared_ptr<Work>& work : slot.under_way) work->wait(stream);
  slot.under_way.clear();
}

void GradReducer::advance(Stream& stream, Pending& p) {
  p.work->wait(stream);
  if (p.slot != nullptr) p.slot->under_way.push_back(std::move(p.work));
  p.work.reset();
  if (rounded_inside_) return advance_rounded(stream, p);
  if (p.hop == Hop::inside && groups_.shards_outside()) {
    p.work = groups_.outer->reduce_scatter(stream, groups_.piece(p.whole), p.out, options());
  } else if (p.hop == Hop::inside || groups_.shards_outside()) {
    add_to_part(stream, p);
    if (groups_.replicas && p.last)
      p.work = groups_.outer->all_reduce(stream, part(p.bucket), ReduceOp::sum, options());
  }
  p.hop = Hop::outside;
}

void GradReducer::add_to_part(Stream& stream, const Pending& p) {
  if (offloaded()) return;
  const Tensor sum = part(p.bucket);
  if (p.out.data != sum.data) backend_.add(stream, {sum, p.out, sum});
}

void GradReducer::send_rounded(Stream& stream, const Tensor& x, Pending& p) {
  RoundedSum& rounded = *level(p.hop);
  // Every rank waits for the same operation here, because the free space depends only on the order of calls.
  while (!(p.staged = rounded.take(x.numel()))) {
    Pending* oldest = nullptr;
    for_pending([&](std::vector<Pending>& pending) {
      for (Pending& other : pending)
        if (&other != &p && other.hop == p.hop && other.staged && (!oldest || other.serial < oldest->serial))
          oldest = &other;
    });
    base::check(oldest != nullptr, "a staging ring is full of what is under way");
    advance(stream, *oldest);
  }
  p.work = rounded.send(stream, x, *p.staged, options());
}

void GradReducer::advance_rounded(Stream& stream, Pending& p) {
  const Tensor sum = part(p.bucket);
  if (p.hop == Hop::gather) return;
  const StagingRing::Run run = *std::exchange(p.staged, std::nullopt);
  RoundedSum& rounded = *level(p.hop);
  if (p.hop == Hop::outside) {
    p.hop = Hop::gather;
    if (!groups_.replicas) {
      rounded.sum(stream, run, p.out, p.mode);
      return add_to_part(stream, p);
    }
    // Each replica sums its piece.
    const std::int64_t size = sum.numel() / groups_.outer->size();
    const Tensor mine = sum.rows(groups_.outer->rank() * size, size);
    rounded.sum(stream, run, mine, WriteMode::assign);
    p.work = groups_.outer->all_gather(stream, mine, sum, options());
    return;
  }
  p.hop = Hop::outside;
  if (groups_.shards_outside()) {
    const Tensor piece = groups_.piece(p.whole);
    rounded.sum(stream, run, piece, WriteMode::assign);
    return send_rounded(stream, piece, p);
  }
  rounded.sum(stream, run, p.out, p.mode);
  add_to_part(stream, p);
  if (groups_.replicas && p.last) send_rounded(stream, sum, p);
}

void GradReducer::settle(Stream& stream, std::vector<Pending>& pending) {
  for (Pending& p : pending)
    while (p.work) advance(stream, p);
  pending.clear();
}

void GradReducer::finish(Stream& stream, std::span<const PartialSum> partial_sums) {
  for (std::size_t unit = 0; unit < units_.size(); ++unit)
    base::check(reduced_[unit] == expected_[unit], "every unit was reduced");
  for_pending([&](std::vector<Pending>& pending) { settle(stream, pending); });
  for (Ring& ring : rings_)
    for (std::size_t i = 0; i < ring.slots.size(); ++i)
      land(stream, ring.slots[(ring.next + i) % ring.slots.size()]);
  for (const PartialSum& sum : partial_sums) add_partial_sum(stream, sum);
}

void GradReducer::add_partial_sum(Stream& stream, const PartialSum& sum) {
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    const Bucket mine = plan_.part(b, groups_.part());
    const std::int64_t begin = std::max(mine.begin, sum.begin),
                       end = std::min(mine.begin + mine.size, sum.begin + sum.count);
    if (begin >= end) continue;
    const Tensor range = part(b).rows(begin - mine.begin, end - begin);
    const auto add_up = [&](const Tensor& x) {
      sum.group->all_reduce(stream, x, ReduceOp::sum, {.label = sum.label})->wait(stream);
    };
    if (!offloaded()) {
      add_up(range);
      continue;
    }
    for (std::int64_t at = 0; at < range.numel(); at += pieces_[0].numel()) {
      const std::int64_t count = std::min(pieces_[0].numel(), range.numel() - at);
      const Tensor there = range.rows(at, count), here = pieces_[0].rows(0, count);
      link_.from->all_gather(stream, there, here, copy_options(sum.label))->wait(stream);
      add_up(here);
      link_.to->all_gather(stream, here, there, copy_options(sum.label))->wait(stream);
    }
  }
}

void GradReducer::gather(Stream& stream) {
  if (plan_.parts == 1) return;
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b)
    BucketGather(groups_, stream, part(b), flat_.rows(plan_.buckets[b].begin, plan_.buckets[b].size),
                 {.label = "gradients"})
        .wait(groups_, stream);
}

}  // namespace trainerd::parallel
