// The state of loss scaling (precision.loss_scale), which is on the device: see kernels::LossScaleUpdate.

#include <algorithm>

#include "core/train/trainer.h"

namespace trainerd::core::train {
namespace {

using namespace kernels;

// Larger ones gain nothing: the least value of fp16 times it is 256.
constexpr double kHighestLossScale = 0x1p32;

}  // namespace

void Trainer::begin_loss_scale() {
  if (!params_.loss_scale().defined()) return;
  const LossScaleState state{.value = static_cast<float>(job_.precision.loss_scale.initial)};
  backend_.write(*compute_, std::as_bytes(std::span(&state, 1)), params_.loss_scale());
}

void Trainer::publish() {
  params_.publish(*compute_);
  if (!params_.loss_scale().defined()) return;
  // The job may have another range since the checkpoint.
  LossScaleState state;
  backend_.read_back(*compute_, params_.loss_scale(), std::as_writable_bytes(std::span(&state, 1)));
  state.value = std::clamp(state.value, static_cast<float>(job_.precision.loss_scale.least),
                           static_cast<float>(kHighestLossScale));
  backend_.write(*compute_, std::as_bytes(std::span(&state, 1)), params_.loss_scale());
}

void Trainer::update_loss_scale(const ReportSlot& slot) {
  if (!params_.loss_scale().defined()) return;
  backend_.loss_scale_update(*compute_, {.state = params_.loss_scale(),
                                         .control = slot.control,
                                         .lowest = job_.precision.loss_scale.least,
                                         .highest = kHighestLossScale,
                                         .growth_steps = job_.precision.loss_scale.window});
}

}  // namespace trainerd::core::train
