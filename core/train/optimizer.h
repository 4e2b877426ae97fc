#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/model/param_store.h"
#include "kernels/backend/backend.h"

namespace trainerd::core::train {

/// What an update reads beside gradients and states.
struct UpdateStep {
  std::int64_t step = 1;    ///< from 1
  double lr = 0;            ///< of `learning_rate`
  kernels::Tensor control;  ///< of kernels::StepControl: an update does nothing where it says skip
};

/// Updates the parameters of a view. What it keeps from step to step is in named states of the view, one
/// element for each element of a parameter; checkpoints hold them as optimizer.STATE.PARAMETER. Plans and
/// bounds count them by these names.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// On this rank's parts of the view. The gradients are reduced; the new parameters are gathered afterwards.
  virtual void update(kernels::Stream& stream, const UpdateStep& step) = 0;
};

/// Names of the states that the job's optimizer keeps for a parameter: none for one that is not trainable.
std::vector<std::string> optimizer_states(const job::OptimizerOptions& options, const model::ParamInfo& info);

/// How it asks for a parameter to be cut: see ViewSpec.
parallel::Granularity optimizer_cut(const job::OptimizerOptions& options, const model::ParamInfo& info);

/// The views that the optimizer asks for: parameters with equal states are in one.
std::vector<model::ViewSpec> optimizer_views(const job::OptimizerOptions& options,
                                             const std::vector<model::ParamInfo>& infos);

/// The optimizer of a trainable view of `optimizer_views`, which outlives it.
std::unique_ptr<Optimizer> make_optimizer(const job::JobSpec& job, model::ParamView& view,
                                          parallel::Communicator& tp, kernels::Backend& backend);

}  // namespace trainerd::core::train
