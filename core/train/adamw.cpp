#include "core/train/adamw.h"

#include "kernels/tensor/rng.h"

namespace trainerd::core::train {

using namespace kernels;

AdamW::AdamW(const job::JobSpec& job, model::ParamView& view, Backend& backend)
    : options_(job.optimizer),
      rounding_(job.precision.rounding),
      view_(view),
      backend_(backend),
      lr_factor_(options_.kind == job::OptimizerKind::muon ? options_.adamw_lr / options_.lr : 1) {
  for (const model::StatePart& part : view.state_parts()) {
    ranges_.push_back(part.ranges);
    for (UpdateRange& range : ranges_.back()) {
      range.weight_decay *= static_cast<float>(options_.weight_decay);
      range.key = mix_keys(range.key, job.seed);
    }
  }
}

void AdamW::update(Stream& stream, const UpdateStep& step) {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const model::StatePart& part = view_.state_parts()[i];
    backend_.adamw_update(stream, {.ranges = ranges_[i],
                                   .grads = part.grads,
                                   .master = part.master,
                                   .moment1 = part.states[0],
                                   .moment2 = part.states[1],
                                   .params = part.params,
                                   .control = step.control,
                                   .lr = static_cast<float>(step.lr * lr_factor_),
                                   .beta1 = static_cast<float>(options_.beta1),
                                   .beta2 = static_cast<float>(options_.beta2),
                                   .eps = static_cast<float>(options_.eps),
                                   .step = step.step,
                                   .rounding = rounding_,
                                   .host_grads = part.host_grads,
                                   .host_master = part.host_master,
                                   .host_moments = part.host_states,
                                   .host_params = part.host_params});
  }
}

}  // namespace trainerd::core::train
