#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/model/param_view.h"

namespace trainerd::core::model {

/// All parameters of one rank, each in one view. Layers hold ids, never tensors. A prepared form is made at
/// its first use after the parameters changed or were gathered anew, and is counted in memory.
class ParamStore {
 public:
  /// Takes all its memory from `persistent`. Each of `infos` is in one of `views`.
  ParamStore(std::vector<ParamInfo> infos, const std::vector<ViewSpec>& views,
             const job::PrecisionRecipe& recipe, const ParamPlacement& placement, kernels::Backend& backend,
             kernels::Arena& persistent);

  int count() const { return static_cast<int>(infos_.size()); }
  const ParamInfo& info(ParamId id) const { return infos_.at(static_cast<std::size_t>(id)); }
  std::int64_t tp_rank() const { return tp_rank_; }

  /// A lease on a form; `kNoParam` gives an undefined one (an absent bias).
  Lease use(ParamId id, WeightForm form, kernels::Stream& stream);
  /// Passes use parameters in an order of their own, walk by walk: `parallel::ParamGatherer`.
  void begin_pass(parallel::ParamGatherer::Pass pass);
  void begin_walk();

  /// A new step: no gradient has a contribution yet. Its gradients are made on `stream`.
  void begin_step(kernels::Stream& stream);
  /// The gradient, in the rank's shape of the parameter; undefined for `kNoParam`.
  kernels::Tensor grad(ParamId id);
  /// `assign` for the first contribution since the gradient was last reduced, `accumulate` after. Each call
  /// counts as a contribution.
  kernels::WriteMode grad_mode(ParamId id);
  /// The contributions so far are made: starts the reduction of what is complete.
  void reduce_complete_grads();
  /// Elements of a gradient that are a summand on each rank of `group`: every step sums them.
  void add_partial_sum(ParamId id, std::int64_t begin, std::int64_t count, parallel::Communicator& group,
                       const char* label);
  /// After the last contribution. What the stream does next sees the sums in the state's parts, and may
  /// update them.
  void finish_grads();

  /// What is gathered after an update is whole: between steps.
  void finish_gathers(kernels::Stream& stream);

  /// Draws initial values, a function of (seed, name, global element index) alone, and publishes them.
  void initialise(kernels::Stream& stream, std::uint64_t seed);
  /// The same for the trainable ones, and publishes nothing: the others are loaded.
  void initialise_trainable(kernels::Stream& stream, std::uint64_t seed);
  /// Averages of weights, where the views keep them, begin as the master weights: after these were loaded.
  void begin_averages(kernels::Stream& stream);
  /// From now on the forward pass reads the averages of weights; with `weights` again the last ones, as they
  /// were. Where it reads the master weights themselves the two change places, so that nothing is updated or
  /// saved meanwhile. Of views whose master weights are fp32.
  enum class Read : std::uint8_t { averages, weights };
  void read(kernels::Stream& stream, Read which);
  /// Makes what the forward pass reads from the master weights, and gathers it where each rank has its part.
  void publish(kernels::Stream& stream);
  /// The gathering alone: after an update, which writes the parameters of its own part.
  void updated(kernels::Stream& stream);

  std::size_t views() const { return views_.size(); }
  ParamView& view(std::size_t i) { return *views_.at(i); }
  const ParamView& view(std::size_t i) const { return *views_.at(i); }
  /// A parameter's master weights. Only without a sharded state.
  kernels::Tensor master(ParamId id) const { return view_of(id).master(id); }

 private:
  ParamView& view_of(ParamId id) const { return *view_of_.at(static_cast<std::size_t>(id)); }

  std::vector<ParamInfo> infos_;
  std::int64_t tp_rank_;
  std::vector<std::unique_ptr<ParamView>> views_;
  std::vector<ParamView*> view_of_;  // by id
};

}  // namespace trainerd::core::model
