#include "kernels/cuda/runtime/staging.h"

#include <algorithm>

#include "kernels/cuda/runtime/check.h"
#include "kernels/memory/memory.h"

namespace trainerd::kernels::cuda {

Staging::Staging() {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, static_cast<std::size_t>(kRing)), "pinned memory for copies");
  ring_ = static_cast<std::byte*>(memory);
}

Staging::~Staging() {
  for (const Taken& t : taken_) cudaEventDestroy(t.done);
  for (cudaEvent_t event : unused_) cudaEventDestroy(event);
  // Waits for copies in progress.
  cudaFreeHost(ring_);
}

void Staging::free_oldest() {
  check(cudaEventSynchronize(taken_.front().done), "a copy between host and device");
  unused_.push_back(taken_.front().done);
  taken_.pop_front();
}

Staging::Piece Staging::take(std::int64_t bytes) {
  base::check(bytes > 0 && bytes <= kPiece, "a staged copy is at most one piece");
  const std::int64_t size = align_up(bytes);
  if (head_ + size > kRing) head_ = 0;
  const std::int64_t begin = head_, end = head_ + size;
  const auto in_the_way = [&] {
    return std::any_of(taken_.begin(), taken_.end(),
                       [&](const Taken& t) { return t.begin < end && begin < t.end; });
  };
  while (taken_.size() == kMaxPieces || in_the_way()) free_oldest();
  cudaEvent_t done = nullptr;
  if (unused_.empty()) {
    check(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "an event");
  } else {
    done = unused_.back();
    unused_.pop_back();
  }
  taken_.push_back({begin, end, done});
  head_ = end;
  return {ring_ + begin, done};
}

void Staging::commit(cudaStream_t stream) {
  check(cudaEventRecord(taken_.back().done, stream), "recording an event");
}

}  // namespace trainerd::kernels::cuda
