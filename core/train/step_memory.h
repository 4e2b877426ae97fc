#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/backend/backend.h"

namespace trainerd::core::train {

/// Classes of tensors that chunks keep in numbered slots: the three lifetimes of `parallel::Lifetime`, and
/// tensors received from pipeline neighbours, from the receive to their use, and what is in host memory from
/// forward to backward.
enum class SlotClass : std::uint8_t {
  forward_to_backward,
  forward_to_weight,
  backward_to_weight,
  received_forward,
  received_backward,
  offloaded,
  count_
};
/// True if all chunks of a rank share these slots; they are counted in its first pool.
constexpr bool shared_by_chunks(SlotClass c) {
  return c == SlotClass::received_forward || c == SlotClass::received_backward;
}
constexpr std::size_t kSlotClasses = static_cast<std::size_t>(SlotClass::count_);
const char* to_string(SlotClass slot_class);
/// Names of memory regions. Each slot class is a region too, with its own name.
inline constexpr const char *kPersistentRegion = "persistent", *kScratchRegion = "scratch",
                            *kTurnScratchRegion = "turn_scratch", *kHostRegion = "host";

/// Number of slots of a rank: the larger of the training and the evaluation schedule's. The chunks of a pool
/// share its slots, each as large as the largest chunk needs.
struct SlotCounts {
  std::vector<int> pool_of_chunk;  ///< by chunk of the rank
  std::vector<std::array<int, kSlotClasses>> of_pool;
};

/// The memory of one rank's steps: regions of fixed size, each a separate allocation with guard pages. In a
/// dry run the regions have neither memory nor a limit, and `budget` returns their resulting sizes.
class StepMemory {
 public:
  /// For a dry run on a device with that `alignment` (kernels::Target).
  StepMemory(const SlotCounts& slots, std::int64_t alignment);
  /// Allocates every region at its planned size. Throws CapacityError.
  StepMemory(kernels::Backend& backend, const SlotCounts& slots, const kernels::MemoryBudget& budget);

  kernels::Arena& persistent() { return persistent_; }
  kernels::Arena& scratch() { return scratch_; }
  /// Of a forward that takes turns with a backward.
  kernels::Arena& turn_scratch() { return turn_scratch_; }
  /// Pinned memory of the host, which the device reads and writes over its link.
  kernels::Arena& host() { return host_; }
  /// `chunk` counts this rank's chunks.
  kernels::Arena& slot(int chunk, SlotClass slot_class, int index);
  const std::vector<int>& pool_of_chunk() const { return pool_of_chunk_; }

  /// The high-water mark of every region so far, by term. A class of slots counts its largest slot times the
  /// number of slots.
  kernels::MemoryBudget budget() const;
  /// The same for a rank with equal chunks and pools but other numbers of slots.
  kernels::MemoryBudget budget_with(const SlotCounts& slots) const;

 private:
  std::vector<kernels::Buffer> buffers_;
  kernels::Arena persistent_;
  kernels::Arena scratch_;
  kernels::Arena turn_scratch_;
  kernels::Arena host_;
  std::vector<int> pool_of_chunk_;
  std::vector<std::array<std::vector<kernels::Arena>, kSlotClasses>> slots_;  // by pool
};

}  // namespace trainerd::core::train
