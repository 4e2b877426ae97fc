#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/model/param_view.h"

namespace trainerd::core::model {

/// Name in checkpoints of the state of loss scaling.
inline constexpr const char* kLossScaleState = "optimizer.loss_scale";

/// All parameters of one rank, each in one view. Layers hold ids, not tensors. A prepared form is made at its
/// first use after the parameters changed or were gathered again. Its memory is planned.
class ParamStore {
 public:
  /// Each of `infos` must be in one of `views`.
  ParamStore(std::vector<ParamInfo> infos, const std::vector<ViewSpec>& views,
             const job::PrecisionRecipe& recipe, const ParamPlacement& placement, kernels::Backend& backend,
             const ParamMemory& memory);

  int count() const { return static_cast<int>(infos_.size()); }
  const ParamInfo& info(ParamId id) const { return infos_.at(static_cast<std::size_t>(id)); }
  std::int64_t tp_rank() const { return tp_rank_; }

  /// A lease on a form; undefined for `kNoParam` (an absent bias).
  Lease use(ParamId id, WeightForm form, kernels::Stream& stream);
  /// The format of the GEMMs with a weight.
  kernels::GemmFormat gemm_format(ParamId id) const { return view_of(id).gemm_format(id); }
  /// Passes and walks use parameters in different orders: see `parallel::ParamGatherer`.
  void begin_pass(const parallel::ParamGatherer::PassKind& kind);
  void begin_walk();

  /// Begins a step with this number of microbatches: no gradient has a contribution yet. Gradients are
  /// computed on `stream`.
  void begin_step(kernels::Stream& stream, std::int64_t microbatches);
  /// The gradient, in the parameter's local shape; undefined for `kNoParam`.
  kernels::Tensor grad(ParamId id);
  /// `assign` for the first contribution since the gradient was last reduced, then `accumulate`. Each call
  /// counts as a contribution.
  kernels::WriteMode grad_mode(ParamId id);
  /// The contributions so far are computed: starts the reductions of complete units.
  void reduce_complete_grads();
  /// Calls `observe` from now on for each gradient that is complete on this rank, before it is reduced. None:
  /// no longer.
  void observe_grads(const ParamView::ObserveGrad& observe);
  /// Declares elements of a gradient as partial sums on each rank of `group`, which every step adds up.
  void add_partial_sum(ParamId id, std::int64_t begin, std::int64_t count, parallel::Communicator& group,
                       const char* label);
  /// Call it after the last contribution. Later work on the stream sees the reduced gradients in the state's
  /// parts and may update the state.
  void finish_grads();

  /// Waits for gathers after an update. Call it between steps.
  void finish_gathers(kernels::Stream& stream);

  /// Draws initial values, which depend only on (seed, name, global element index), and publishes them.
  void initialise(kernels::Stream& stream, std::uint64_t seed);
  /// The same for trainable parameters only, without publishing: the others are loaded.
  void initialise_trainable(kernels::Stream& stream, std::uint64_t seed);
  /// Sets averages of weights, if views keep them, to the master weights, after these were loaded.
  void begin_averages(kernels::Stream& stream);
  /// `averages`: the forward pass reads the averages of weights from now on; `weights`: the last weights
  /// again, unchanged. Experts' biases have no averages. If the forward pass reads the master weights
  /// themselves, both are swapped, so nothing may be updated or saved meanwhile. Only for fp32 master
  /// weights.
  enum class Read : std::uint8_t { averages, weights };
  void read(kernels::Stream& stream, Read which);
  /// Casts the master weights to what the forward pass reads, and gathers it if each rank has a part.
  void publish(kernels::Stream& stream);
  /// Only the gather: after an update, which writes the parameters of this rank's part.
  void updated(kernels::Stream& stream);

  /// kernels::LossScaleState, the same on all ranks; undefined if the loss is not scaled.
  const kernels::Tensor& loss_scale() const { return loss_scale_; }

  std::size_t views() const { return views_.size(); }
  ParamView& view(std::size_t i) { return *views_.at(i); }
  const ParamView& view(std::size_t i) const { return *views_.at(i); }
  /// A parameter's master weights. Only for an unsharded state.
  kernels::Tensor master(ParamId id) const { return view_of(id).master(id); }

 private:
  ParamView& view_of(ParamId id) const { return *view_of_.at(static_cast<std::size_t>(id)); }

  std::vector<ParamInfo> infos_;
  std::int64_t tp_rank_;
  kernels::Tensor loss_scale_;
  std::vector<std::unique_ptr<ParamView>> views_;
  std::vector<ParamView*> view_of_;  // by id
};

}  // namespace trainerd::core::model
