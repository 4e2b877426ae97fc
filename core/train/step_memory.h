#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/backend/backend.h"

namespace trainerd::core::train {

/// What chunks keep in numbered slots: the three lifetimes of `parallel::Lifetime`, and what is received from
/// the neighbours, from the receive to its use.
enum class SlotClass : std::uint8_t {
  forward_to_backward,
  forward_to_weight,
  backward_to_weight,
  received_forward,
  received_backward,
  count_
};
/// All chunks of a rank share the slots, which are counted as its first pool's.
constexpr bool shared_by_chunks(SlotClass c) {
  return c == SlotClass::received_forward || c == SlotClass::received_backward;
}
constexpr std::size_t kSlotClasses = static_cast<std::size_t>(SlotClass::count_);
const char* to_string(SlotClass slot_class);
/// A step's memory has these two regions, and one for each class of slots.
inline constexpr const char *kPersistentRegion = "persistent", *kScratchRegion = "scratch";

/// How many slots a rank has: the larger of the training and the evaluation schedule's. Chunks of a pool
/// share its slots, each as large as the largest of them needs.
struct SlotCounts {
  std::vector<int> pool_of_chunk;  ///< by chunk of the rank
  std::vector<std::array<int, kSlotClasses>> of_pool;
};

/// The memory of one rank's step: regions of fixed size, each its own allocation with guard pages around it.
/// In a dry run the regions have no memory and no end, and `budget` says what they came to.
class StepMemory {
 public:
  /// For the dry run on a device of that `alignment` (kernels::Target).
  StepMemory(const SlotCounts& slots, std::int64_t alignment);
  /// Allocates every region at its planned size. Throws CapacityError.
  StepMemory(kernels::Backend& backend, const SlotCounts& slots, const kernels::MemoryBudget& budget);

  kernels::Arena& persistent() { return persistent_; }
  kernels::Arena& scratch() { return scratch_; }
  /// `chunk` counts the rank's own chunks.
  kernels::Arena& slot(int chunk, SlotClass slot_class, int index);
  const std::vector<int>& pool_of_chunk() const { return pool_of_chunk_; }

  /// The high-water mark of every region so far, by term; a class of slots is as many times its largest slot.
  kernels::MemoryBudget budget() const;
  /// The same of a rank whose chunks and pools are alike and have other numbers of slots.
  kernels::MemoryBudget budget_with(const SlotCounts& slots) const;

 private:
  std::vector<kernels::Buffer> buffers_;
  kernels::Arena persistent_;
  kernels::Arena scratch_;
  std::vector<int> pool_of_chunk_;
  std::vector<std::array<std::vector<kernels::Arena>, kSlotClasses>> slots_;  // by pool
};

}  // namespace trainerd::core::train
