#include "core/train/copy_hashes.h"

namespace trainerd::core::train {
namespace {

std::string box_text(const parallel::LogicalBox& box) {
  std::string text = " [";
  for (std::size_t d = 0; d < box.shape.size(); ++d)
    text += (d > 0 ? ", " : "") + std::to_string(box.begin[d]) + ":" +
            std::to_string(box.begin[d] + box.shape[d]);
  return text + "]";
}

}  // namespace

CopyHashes::CopyHashes(const model::ParamStore& params) {
  for (std::size_t v = 0; v < params.views(); ++v)
    params.view(v).each_copy(
        [&](const std::string& what, const model::StateRun& run, const kernels::Tensor& x, bool on_host) {
          names_.push_back(what + params.info(run.id).name + box_text(run.box));
          tensors_.push_back(x);
          on_host_.push_back(on_host);
        });
  if (params.loss_scale().defined()) {
    names_.emplace_back(model::kLossScaleState);
    tensors_.push_back(params.loss_scale());
    on_host_.push_back(false);
  }
}

void CopyHashes::make(kernels::Backend& backend, kernels::Stream& stream, const kernels::Tensor& out) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    backend.tensor_hash(stream, {.x = tensors_[i],
                                 .out = out.rows(static_cast<std::int64_t>(i), 1).reshaped({2}),
                                 .host = on_host_[i]});
}

}  // namespace trainerd::core::train
