#include "core/train/grad_hashes.h"

namespace trainerd::core::train {

GradHashes::GradHashes(const model::ParamStore& params) {
  for (std::size_t v = 0; v < params.views(); ++v) {
    const model::ParamView& view = params.view(v);
    if (!view.has_grads()) continue;
    for (const model::StateRun& run : view.state_runs()) {
      names_.push_back(params.info(run.id).name);
      tensors_.push_back(view.state_parts()[run.part].grads.rows(run.begin, run.count));
      on_host_.push_back(view.state_parts()[run.part].host_grads);
    }
  }
}

void GradHashes::make(kernels::Backend& backend, kernels::Stream& stream, const kernels::Tensor& out) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    backend.tensor_hash(stream, {.x = tensors_[i],
                                 .out = out.rows(static_cast<std::int64_t>(i), 1).reshaped({2}),
                                 .host = on_host_[i]});
}

}  // namespace trainerd::core::train
