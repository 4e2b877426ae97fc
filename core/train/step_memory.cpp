#include "core/train/step_memory.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace trainerd::core::train {
namespace {

using namespace kernels;

/// What forward keeps for backward becomes smaller by recomputation.
MemoryBudget::RegionKind kind_of(SlotClass c) {
  if (c == SlotClass::offloaded) return MemoryBudget::RegionKind::host;
  return c == SlotClass::forward_to_backward || c == SlotClass::forward_to_weight
             ? MemoryBudget::RegionKind::kept
             : MemoryBudget::RegionKind::passed;
}

/// "forward_to_backward", and with several pools "forward_to_backward.1".
std::string region_name(std::size_t slot_class, std::size_t pool, std::size_t pools) {
  const auto c = static_cast<SlotClass>(slot_class);
  return std::string(to_string(c)) + (pools == 1 || shared_by_chunks(c) ? "" : "." + std::to_string(pool));
}

MemoryBudget::Region region_of(const Arena& arena, std::int64_t copies, MemoryBudget::RegionKind kind) {
  MemoryBudget::Region region{arena.name(), kind, arena.high_water() * copies, {}};
  for (std::size_t term = 0; term < arena.terms_at_peak().size(); ++term)
    if (arena.terms_at_peak()[term] > 0)
      region.terms[to_string(static_cast<MemoryTerm>(term))] = arena.terms_at_peak()[term] * copies;
  return region;
}

}  // namespace

const char* to_string(SlotClass slot_class) {
  switch (slot_class) {
    case SlotClass::forward_to_backward: return "forward_to_backward";
    case SlotClass::forward_to_weight: return "forward_to_weight";
    case SlotClass::backward_to_weight: return "backward_to_weight";
    case SlotClass::received_forward: return "received_forward";
    case SlotClass::received_backward: return "received_backward";
    case SlotClass::offloaded: return "offloaded";
    case SlotClass::count_: break;
  }
  return "?";
}

StepMemory::StepMemory(const SlotCounts& slots, std::int64_t alignment)
    : persistent_(Arena::dry(kPersistentRegion, alignment)),
      scratch_(Arena::dry(kScratchRegion, alignment)),
      turn_scratch_(Arena::dry(kTurnScratchRegion, alignment)),
      host_(Arena::dry(kHostRegion, alignment)),
      pool_of_chunk_(slots.pool_of_chunk),
      slots_(slots.of_pool.size()) {
  for (std::size_t pool = 0; pool < slots_.size(); ++pool)
    for (std::size_t i = 0; i < kSlotClasses; ++i)
      for (int slot = 0; slot < slots.of_pool[pool][i]; ++slot)
        slots_[pool][i].push_back(Arena::dry(region_name(i, pool, slots_.size()), alignment));
}

StepMemory::StepMemory(Backend& backend, const SlotCounts& slots, const MemoryBudget& budget)
    : pool_of_chunk_(slots.pool_of_chunk), slots_(slots.of_pool.size()) {
  const auto allocate = [&](const std::string& name, MemoryKind kind = MemoryKind::device) {
    buffers_.push_back(backend.allocate(kind, budget.bytes_of(name)));
    return buffers_.back().data();
  };
  const std::int64_t alignment = backend.target().alignment;
  if (budget.has(kHostRegion))
    host_ =
        Arena(kHostRegion, allocate(kHostRegion, MemoryKind::host), budget.bytes_of(kHostRegion), alignment);
  const auto arena = [&](const char* name) {
    return Arena(name, allocate(name), budget.bytes_of(name), alignment);
  };
  persistent_ = arena(kPersistentRegion);
  scratch_ = arena(kScratchRegion);
  if (budget.has(kTurnScratchRegion)) turn_scratch_ = arena(kTurnScratchRegion);
  for (std::size_t pool = 0; pool < slots_.size(); ++pool) {
    for (std::size_t i = 0; i < kSlotClasses; ++i) {
      const int count = slots.of_pool[pool][i];
      if (count == 0) continue;
      const std::string name = region_name(i, pool, slots_.size());
      const bool host = static_cast<SlotClass>(i) == SlotClass::offloaded;
      std::byte* base = allocate(name, host ? MemoryKind::host : MemoryKind::device);
      const std::int64_t bytes = budget.bytes_of(name) / count;
      for (int slot = 0; slot < count; ++slot)
        slots_[pool][i].emplace_back(name, base + slot * bytes, bytes, alignment);
    }
  }
}

Arena& StepMemory::slot(int chunk, SlotClass slot_class, int index) {
  const int pool = shared_by_chunks(slot_class) ? 0 : pool_of_chunk_.at(static_cast<std::size_t>(chunk));
  return slots_[static_cast<std::size_t>(pool)][static_cast<std::size_t>(slot_class)].at(
      static_cast<std::size_t>(index));
}

MemoryBudget StepMemory::budget() const {
  SlotCounts counts{pool_of_chunk_, std::vector<std::array<int, kSlotClasses>>(slots_.size())};
  for (std::size_t pool = 0; pool < slots_.size(); ++pool)
    for (std::size_t i = 0; i < kSlotClasses; ++i)
      counts.of_pool[pool][i] = static_cast<int>(slots_[pool][i].size());
  return budget_with(counts);
}

MemoryBudget StepMemory::budget_with(const SlotCounts& counts) const {
  using RegionKind = MemoryBudget::RegionKind;
  base::check(counts.pool_of_chunk == pool_of_chunk_, "ranks that are alike have the same pools");
  MemoryBudget budget;
  budget.regions.push_back(region_of(persistent_, 1, RegionKind::persistent));
  budget.regions.push_back(region_of(scratch_, 1, RegionKind::scratch));
  if (turn_scratch_.high_water() > 0)
    budget.regions.push_back(region_of(turn_scratch_, 1, RegionKind::scratch));
  if (host_.high_water() > 0) budget.regions.push_back(region_of(host_, 1, RegionKind::host));
  for (std::size_t pool = 0; pool < slots_.size(); ++pool) {
    for (std::size_t i = 0; i < kSlotClasses; ++i) {
      const std::vector<Arena>& slots = slots_[pool][i];
      base::check(slots.empty() == (counts.of_pool[pool][i] == 0),
                  "ranks that are alike use the same classes of slots");
      if (slots.empty()) continue;
      const auto largest = std::max_element(slots.begin(), slots.end(), [](const Arena& a, const Arena& b) {
        return a.high_water() < b.high_water();
      });
      budget.regions.push_back(
          region_of(*largest, counts.of_pool[pool][i], kind_of(static_cast<SlotClass>(i))));
    }
  }
  return budget;
}

}  // namespace trainerd::core::train
