#include "core/train/optimizer.h"

#include <algorithm>
#include <utility>

#include "core/train/element_rule.h"
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
  if (!info.trainable || info.biases_of_layer >= 0) return {};
  std::vector<std::string> states = optimizer_cut(options, info) == parallel::Granularity::matrix
                                        ? Muon::states()
                                        : ElementRule::states(ElementRule::rule_of(options));
  if (options.average.on()) states.emplace_back(model::kAverageState);
  return states;
}

std::vector<model::ViewSpec> optimizer_views(const job::OptimizerOptions& options,
                                             const std::vector<model::ParamInfo>& infos) {
  std::vector<model::ViewSpec> views;
  for (std::size_t id = 0; id < infos.size(); ++id) {
    const std::vector<std::string> states = optimizer_states(options, infos[id]);
    auto view = std::find_if(views.begin(), views.end(), [&](const model::ViewSpec& other) {
      return other.states == states && other.experts == infos[id].expert &&
             other.expert_biases == (infos[id].biases_of_layer >= 0);
    });
    if (view == views.end())
      view = views.insert(views.end(), {.ids = {},
                                        .states = states,
                                        .cut = optimizer_cut(options, infos[id]),
                                        .trainable = infos[id].trainable,
                                        .experts = infos[id].expert,
                                        .expert_biases = infos[id].biases_of_layer >= 0});
    view->ids.push_back(static_cast<model::ParamId>(id));
  }
  return views;
}

namespace {

/// The rule of experts' biases: kernels::ExpertBiasUpdate.
class ExpertBiases : public Optimizer {
 public:
  ExpertBiases(double rate, model::ParamView& view, kernels::Backend& backend)
      : rate_(static_cast<float>(rate)), view_(view), backend_(backend) {}

  void update(kernels::Stream& stream, const UpdateStep& step) override {
    for (const model::StateRun& run : view_.state_runs()) {
      const kernels::Tensor counts = step.expert_counts.rows(view_.info(run.id).biases_of_layer, 1);
      backend_.expert_bias_update(stream,
                                  {.count_E = counts.reshaped({run.count}),
                                   .bias_E = view_.state_parts()[run.part].master.rows(run.begin, run.count),
                                   .control = step.control,
                                   .rate = rate_});
    }
  }

 private:
  float rate_;
  model::ParamView& view_;
  kernels::Backend& backend_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const job::JobSpec& job, model::ParamView& view,
                                          parallel::Communicator& tp, kernels::Backend& backend) {
  if (!view.has_grads()) return std::make_unique<ExpertBiases>(job.optimizer.expert_bias_rate, view, backend);
  std::unique_ptr<Optimizer> rule;
  if (job.optimizer.kind == job::OptimizerKind::muon && view.states().front() == Muon::states().front())
    rule = std::make_unique<Muon>(job, view, tp, backend);
  else rule = std::make_unique<ElementRule>(job, view, backend);
  if (!job.optimizer.average.on()) return rule;
  return std::make_unique<WeightAverage>(job.optimizer.average, std::move(rule), view, backend);
}

}  // namespace trainerd::core::train
