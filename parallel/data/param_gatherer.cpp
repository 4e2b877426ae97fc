#include "parallel/data/param_gatherer.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::parallel {

using namespace kernels;

ParamGatherer::ParamGatherer(const DataParallelGroups& groups, const BucketLayout& plan,
                             std::vector<ParamUnit> units, bool sharded, DType dtype, MemoryTerm term,
                             Arena& persistent, Backend& backend)
    : groups_(groups), plan_(plan), units_(std::move(units)), sharded_(sharded), pending_(plan.units.size()) {
  base::check(units_.size() == plan_.units.size(), "every unit of parameters is described");
  if (groups.shards_outside() && groups.parameters == Progress::background &&
      backend.target().runs_behind_host())
    chain_ = backend.make_stream("parameters", &no_scratch_);
  if (!sharded_) {
    flat_ = persistent.take(dtype, {plan_.elements}, term);
    return;
  }
  parts_ = persistent.take(dtype, {plan_.shard_elements()}, term);
  take_rings(dtype, persistent);
}

ParamGatherer::ParamGatherer(const DataParallelGroups& groups, const BucketLayout& plan,
                             std::vector<ParamUnit> units, DType dtype, MemoryTerm term, Arena& persistent,
                             Backend& backend, const HostLink& link, Arena& host)
    : groups_(groups),
      plan_(plan),
      units_(std::move(units)),
      sharded_(true),
      from_host_(link.from),
      chain_(backend.make_stream("parameters", &no_scratch_)),
      parts_(host.take(dtype, {plan_.shard_elements()}, term)),
      pending_(plan.units.size()) {
  base::check(units_.size() == plan_.units.size(), "every unit of parameters is described");
  take_rings(dtype, persistent);
}

void ParamGatherer::take_rings(DType dtype, Arena& persistent) {
  for (std::size_t ring = 0; ring < rings_.size(); ++ring) {
    std::int64_t elements = 0, extra = 0;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (units_[u].vectors != (ring == 1)) continue;
      elements = std::max(elements, plan_.units[u].size);
      extra = std::max(extra, units_[u].extra_bytes);
    }
    rings_[ring].slots.resize(groups_.parameters == Progress::background ? 2 : 1);
    for (Slot& slot : rings_[ring].slots) {
      slot.whole = persistent.take(dtype, {elements}, MemoryTerm::parameters);
      if (extra > 0) slot.extra = persistent.take(DType::u8, {extra}, MemoryTerm::prepared_weights);
    }
  }
}

Tensor ParamGatherer::part(std::size_t b) const {
  const Bucket mine = plan_.part(b, groups_.part());
  return sharded_ ? parts_.rows(plan_.shard_begin(b), mine.size) : flat_.rows(mine.begin, mine.size);
}

void ParamGatherer::start(Stream& stream, std::size_t unit, const Tensor& whole,
                          std::vector<BucketGather>& pending) {
  const Unit& u = plan_.units[unit];
  const CommOptions options{.label = "parameters", .progress = groups_.parameters};
  if (from_host_ != nullptr && plan_.parts == 1) {
    pending.emplace_back(groups_, stream, parts_.rows(u.begin, u.size), whole, options, from_host_,
                         chain_.get());
    return;
  }
  for (std::size_t b = u.first_bucket; b < u.first_bucket + u.buckets; ++b) {
    const Tensor bucket = whole.rows(plan_.buckets[b].begin - u.begin, plan_.buckets[b].size);
    pending.emplace_back(groups_, stream, part(b), bucket, options, from_host_, chain_.get());
  }
}

void ParamGatherer::settle(Stream& stream, std::vector<BucketGather>& pending) {
  for (BucketGather& gather : pending) gather.advance(groups_, stream);
  for (BucketGather& gather : pending) gather.wait(groups_, stream);
  pending.clear();
}

void ParamGatherer::begin_pass(const PassKind& kind) {
  for (Ring& ring : rings_) {
    for (Slot& slot : ring.slots) {
      base::check(slot.pending.empty() && slot.leases == 0, "a pass ends with all that it gathered used");
      slot.entry = -1;
    }
    ring.entry = -1;
    ring.between_walks = true;
    ring.order = &ring.orders[kind];
  }
  learned_ = !rings_[0].order->empty() || !rings_[1].order->empty();
}

void ParamGatherer::begin_walk() {
  for (Ring& ring : rings_) ring.between_walks = true;
}

void ParamGatherer::fetch(Stream& stream, Ring& ring, std::int64_t entry) {
  Slot& slot = ring.slots[static_cast<std::size_t>(entry) % ring.slots.size()];
  if (slot.entry == entry) return;
  base::check(slot.leases == 0 && slot.pending.empty(),
              "a gathered unit is let go before the one after the next");
  const std::size_t unit = ring.order->at(static_cast<std::size_t>(entry));
  start(stream, unit, slot.whole.rows(0, plan_.units[unit].size), slot.pending);
  slot.entry = entry;
  slot.serial = ++serial_;
}

GatheredUnit ParamGatherer::use(Stream& stream, std::size_t unit) {
  const Unit& u = plan_.units[unit];
  if (!sharded_) {
    settle(stream, pending_[unit]);
    return {flat_.rows(u.begin, u.size), {}, 0, &leases_};
  }
  Ring& ring = rings_[units_[unit].vectors ? 1 : 0];
  std::vector<std::size_t>& order = *ring.order;
  if (ring.between_walks || order[static_cast<std::size_t>(ring.entry)] != unit) {
    ++ring.entry;
    if (!learned_) order.push_back(unit);
    base::check(ring.entry < static_cast<std::int64_t>(order.size()) &&
                    order[static_cast<std::size_t>(ring.entry)] == unit,
                "every pass uses its units in the same order");
    fetch(stream, ring, ring.entry);
    ring.between_walks = false;
    // The unit before this one is no longer in use, so the next one is gathered into its slot.
    if (learned_ && ring.slots.size() > 1 && ring.entry + 1 < static_cast<std::int64_t>(order.size()))
      fetch(stream, ring, ring.entry + 1);
  }
  Slot& slot = ring.slots[static_cast<std::size_t>(ring.entry) % ring.slots.size()];
  settle(stream, slot.pending);
  return {slot.whole.rows(0, u.size), slot.extra, slot.serial, &slot.leases};
}

void ParamGatherer::finish(Stream& stream) {
  for (std::vector<BucketGather>& pending : pending_) settle(stream, pending);
}

void ParamGatherer::updated(Stream& stream) {
  if (sharded_ || plan_.parts == 1) return;
  finish(stream);
  for (std::size_t unit = 0; unit < plan_.units.size(); ++unit)
    start(stream, unit, flat_.rows(plan_.units[unit].begin, plan_.units[unit].size), pending_[unit]);
}

}  // namespace trainerd::parallel
