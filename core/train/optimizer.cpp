#include "core/train/optimizer.h"

#include <algorithm>

#include "core/train/adamw.h"

namespace trainerd::core {

std::vector<std::string> optimizer_states(const OptimizerOptions&, const ParamInfo&) {
  return AdamW::states();
}

std::vector<ViewSpec> optimizer_views(const OptimizerOptions& options, const std::vector<ParamInfo>& infos) {
  std::vector<ViewSpec> views;
  for (std::size_t id = 0; id < infos.size(); ++id) {
    const std::vector<std::string> states = optimizer_states(options, infos[id]);
    auto view = std::find_if(views.begin(), views.end(),
                             [&](const ViewSpec& other) { return other.states == states; });
    if (view == views.end()) view = views.insert(views.end(), {{}, states});
    view->ids.push_back(static_cast<ParamId>(id));
  }
  return views;
}

std::unique_ptr<Optimizer> make_optimizer(const JobSpec& job, ParamView& view, kernels::Backend& backend) {
  return std::make_unique<AdamW>(job, view, backend);
}

}  // namespace trainerd::core
