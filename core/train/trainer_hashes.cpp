// Hashes of a rank's state: of what other ranks hold too, and of its own state between updates.

#include "core/train/trainer.h"
#include "kernels/base/error.h"

namespace trainerd::core::train {

using namespace kernels;

std::vector<std::uint64_t> Trainer::read_hashes(Stream& stream, const Tensor& hashes_C2) {
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(hashes_C2.shape[0]));
  if (!hashes.empty()) backend_.read_back(stream, hashes_C2, std::as_writable_bytes(std::span(hashes)));
  return hashes;
}

std::vector<std::uint64_t> Trainer::hash_copies_now() {
  base::check(copies_ && clock_.unread() == 0, "copies are hashed between steps");
  params_.finish_gathers(*compute_);
  const ReportSlot& slot = slots_[static_cast<std::size_t>(slot_)];
  copies_->make(backend_, *compute_, slot.copy_hashes);
  return read_hashes(*compute_, slot.copy_hashes);
}

void Trainer::begin_state_check() {
  if (!state_hashes_) return;
  base::check(clock_.unread() == 0, "the state is loaded between steps");
  const ReportSlot& slot = slots_[static_cast<std::size_t>(slot_)];
  state_hashes_->make(backend_, *compute_, slot.state_after);
  state_after_ = read_hashes(*compute_, slot.state_after);
}

/// Call it for steps in order. Compares the state before this step's update with that after the previous one.
std::vector<std::string> Trainer::changed_state(Stream& stream, const ReportSlot& slot) {
  const std::vector<std::uint64_t> before = read_hashes(stream, slot.state_before);
  const std::vector<std::uint64_t> left = std::exchange(state_after_, read_hashes(stream, slot.state_after));
  std::vector<std::string> changed;
  for (std::size_t i = 0; i < left.size(); ++i)
    if (before[i] != left[i]) changed.push_back(state_hashes_->names()[i]);
  return changed;
}

}  // namespace trainerd::core::train
