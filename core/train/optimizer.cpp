#include "core/train/optimizer.h"

#include <algorithm>
#include <utility>

#include "core/train/adamw.h"
#include "core/train/muon.h"
#include "core/train/weight_average.h"

namespace trainerd::core::train {

parallel::Granularity optimizer_cut(const job::OptimizerOptions& options, const model::ParamInfo& info) {
  const bool whole = options.kind == job::OptimizerKind::muon && info.trainable &&
                     info.shard.granularity == parallel::Granularity::matrix;
  return whole ? parallel::Granularity::matrix : parallel::Granularity::element;
}

std::vector<std::string> optimizer_states(const job::OptimizerOptions& options,
                                          const model::ParamInfo& info) {
  if (!info.trainable) return {};
  std::vector<std::string> states =
      optimizer_cut(options, info) == parallel::Granularity::matrix ? Muon::states() : AdamW::states();
  if (options.average.on()) states.emplace_back(model::kAverageState);
  return states;
}

std::vector<model::ViewSpec> optimizer_views(const job::OptimizerOptions& options,
                                             const std::vector<model::ParamInfo>& infos) {
  std::vector<model::ViewSpec> views;
  for (std::size_t id = 0; id < infos.size(); ++id) {
    const std::vector<std::string> states = optimizer_states(options, infos[id]);
    auto view = std::find_if(views.begin(), views.end(), [&](const model::ViewSpec& other) {
      return other.states == states && other.experts == infos[id].expert;
    });
    if (view == views.end())
      view = views.insert(
          views.end(),
          {{}, states, optimizer_cut(options, infos[id]), infos[id].trainable, infos[id].expert});
    view->ids.push_back(static_cast<model::ParamId>(id));
  }
  return views;
}

std::unique_ptr<Optimizer> make_optimizer(const job::JobSpec& job, model::ParamView& view,
                                          parallel::Communicator& tp, kernels::Backend& backend) {
  std::unique_ptr<Optimizer> rule;
  if (view.states().front() == Muon::states().front()) rule = std::make_unique<Muon>(job, view, tp, backend);
  else rule = std::make_unique<AdamW>(job, view, backend);
  if (!job.optimizer.average.on()) return rule;
  return std::make_unique<WeightAverage>(job.optimizer.average, std::move(rule), view, backend);
}

}  // namespace trainerd::core::train
