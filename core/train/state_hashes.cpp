#include "core/train/state_hashes.h"

namespace trainerd::core::train {

StateHashes::StateHashes(const model::ParamStore& params) {
  for (std::size_t v = 0; v < params.views(); ++v) {
    const model::ParamView& view = params.view(v);
    for (const model::StateRun& run : view.state_runs()) {
      const model::StatePart& part = view.state_parts()[run.part];
      const std::string& name = params.info(run.id).name;
      names_.push_back(name);
      tensors_.push_back(part.master.rows(run.begin, run.count));
      on_host_.push_back(part.host_master);
      for (std::size_t s = 0; s < view.states().size(); ++s) {
        names_.push_back("optimizer." + view.states()[s] + "." + name);
        tensors_.push_back(part.states[s].rows(run.begin, run.count));
        on_host_.push_back(part.host_states);
      }
      // With ZeRO 3 it is in no other rank's memory, which `CopyHashes` would compare it with.
      if (part.params.defined() && view.placement().shards(3)) {
        names_.push_back("copy of " + name);
        tensors_.push_back(part.params.rows(run.begin, run.count));
        on_host_.push_back(part.host_params);
      }
    }
  }
  if (params.loss_scale().defined()) {
    names_.emplace_back(model::kLossScaleState);
    tensors_.push_back(params.loss_scale());
    on_host_.push_back(false);
  }
}

void StateHashes::make(kernels::Backend& backend, kernels::Stream& stream, const kernels::Tensor& out) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    backend.tensor_hash(stream, {.x = tensors_[i],
                                 .out = out.rows(static_cast<std::int64_t>(i), 1).reshaped({2}),
                                 .host = on_host_[i]});
}

}  // namespace trainerd::core::train
