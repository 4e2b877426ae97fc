#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/model/param_store.h"
#include "kernels/backend/backend.h"

namespace trainerd::core::train {

/// Inputs of an update besides gradients and states.
struct UpdateStep {
  std::int64_t step = 1;               ///< from 1
  double lr = 0;                       ///< from `learning_rate`
  kernels::Tensor control;             ///< from kernels::StepControl: the update does nothing if it says skip
  kernels::Tensor expert_counts = {};  ///< ReportSlot's, over all ranks; undefined if the MLPs are dense
};

/// Updates the parameters of a view. Its persistent state is in the view's named states, one element per
/// element of a parameter. Checkpoints store them as optimizer.STATE.PARAMETER; plans and memory bounds count
/// them by these names.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Updates this rank's parts of the view. The gradients are reduced; the new parameters are gathered later.
  virtual void update(kernels::Stream& stream, const UpdateStep& step) = 0;
};

/// Names of the states that the job's optimizer keeps for a parameter; none if it is not trainable.
std::vector<std::string> optimizer_states(const job::OptimizerOptions& options, const model::ParamInfo& info);

/// How the optimizer needs a parameter to be cut: see ViewSpec.
parallel::Granularity optimizer_cut(const job::OptimizerOptions& options, const model::ParamInfo& info);

/// The views that the optimizer needs: parameters with equal states share one.
std::vector<model::ViewSpec> optimizer_views(const job::OptimizerOptions& options,
                                             const std::vector<model::ParamInfo>& infos);

/// The optimizer of a trainable view from `optimizer_views`; the view must outlive it.
std::unique_ptr<Optimizer> make_optimizer(const job::JobSpec& job, model::ParamView& view,
                                          parallel::Communicator& tp, kernels::Backend& backend);

}  // namespace trainerd::core::train
