#include "core/train/step_memory.h"

#include <algorithm>

namespace trainerd::core {
namespace {

using namespace kernels;
using parallel::kLifetimes;
using parallel::Lifetime;

std::string region_name(int lifetime) { return to_string(static_cast<Lifetime>(lifetime)); }

MemoryPlan::Region region_of(const Arena& arena, std::int64_t copies) {
  MemoryPlan::Region region{arena.name(), arena.high_water() * copies, {}};
  for (std::size_t term = 0; term < arena.terms_at_peak().size(); ++term)
    if (arena.terms_at_peak()[term] > 0)
      region.terms[to_string(static_cast<MemoryTerm>(term))] = arena.terms_at_peak()[term] * copies;
  return region;
}

}  // namespace

StepMemory::StepMemory(const SlotCounts& slots) : persistent_(Arena::dry("persistent")), scratch_(Arena::dry("scratch")) {
  for (int i = 0; i < kLifetimes; ++i)
    for (int slot = 0; slot < slots[static_cast<std::size_t>(i)]; ++slot)
      slots_[static_cast<std::size_t>(i)].push_back(Arena::dry(region_name(i)));
}

StepMemory::StepMemory(Backend& backend, const SlotCounts& slots, const MemoryPlan& plan) {
  const auto allocate = [&](const std::string& name) {
    buffers_.push_back(backend.allocate(MemoryKind::device, plan.bytes_of(name)));
    return buffers_.back().data();
  };
  persistent_ = Arena("persistent", allocate("persistent"), plan.bytes_of("persistent"));
  scratch_ = Arena("scratch", allocate("scratch"), plan.bytes_of("scratch"));
  for (int i = 0; i < kLifetimes; ++i) {
    const int count = slots[static_cast<std::size_t>(i)];
    if (count == 0) continue;
    std::byte* base = allocate(region_name(i));
    const std::int64_t bytes = plan.bytes_of(region_name(i)) / count;
    for (int slot = 0; slot < count; ++slot)
      slots_[static_cast<std::size_t>(i)].emplace_back(region_name(i), base + slot * bytes, bytes);
  }
}

Arena& StepMemory::slot(Lifetime lifetime, int index) {
  return slots_[static_cast<std::size_t>(lifetime)].at(static_cast<std::size_t>(index));
}

MemoryPlan StepMemory::plan() const {
  MemoryPlan plan;
  plan.regions.push_back(region_of(persistent_, 1));
  plan.regions.push_back(region_of(scratch_, 1));
  for (const std::vector<Arena>& slots : slots_) {
    if (slots.empty()) continue;
    const auto largest = std::max_element(slots.begin(), slots.end(), [](const Arena& a, const Arena& b) {
      return a.high_water() < b.high_water();
    });
    plan.regions.push_back(region_of(*largest, static_cast<std::int64_t>(slots.size())));
  }
  return plan;
}

}  // namespace trainerd::core
