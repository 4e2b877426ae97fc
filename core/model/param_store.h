#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/job/train_options.h"
#include "kernels/backend/backend.h"
#include "parallel/data/buckets.h"
#include "parallel/data/grad_reducer.h"
#include "parallel/data/param_gatherer.h"
#include "parallel/tensor/shard.h"

namespace trainerd::core {

using ParamId = int;
constexpr ParamId kNoParam = -1;

/// One parameter as the model declares it.
struct ParamInfo {
  std::string name;
  parallel::ShardSpec shard;
  float init_mean = 0;
  float init_stddev = 0;
  bool decay = false;            ///< weight decay applies
  bool gemm_weight = false;      ///< has prepared forms
  std::int64_t gemm_tokens = 0;  ///< rows of the activation it will most often meet
  /// Parameters of a unit are gathered, reduced and freed together: a layer's matrices, or the vectors of a
  /// chunk, whose gradients are complete after the walk for input gradients.
  std::size_t unit = 0;
  bool vectors = false;  ///< the unit's kind
  bool cut_alone =
      false;  ///< several pipeline ranks hold it, in different company, and cut it into the same parts
  std::int64_t grad_uses = 1;  ///< contributions to its gradient in a microbatch: two for a tied embedding
};

/// Where this rank stands for its parameters, and what it keeps of their state.
struct ParamPlacement {
  std::int64_t tp = 1, tp_rank = 0;
  parallel::DataParallelGroups dp;
  /// What is in parts: from 1 the optimizer's state, from 2 gradients, from 3 parameters.
  std::int64_t zero = 0;
  std::int64_t microbatches = 1;  ///< of a step
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
};

/// The form of a parameter that an operator reads.
enum class WeightForm : std::uint8_t { plain, fprop, dgrad };

/// A parameter in one form, held while operators that read it are issued. Residence may change when no lease
/// is out.
class Lease {
 public:
  /// `count`: of the leases on what `weight` lies in; null for an absent parameter.
  Lease(int* count, const kernels::Weight& weight) : count_(count), weight_(weight) {
    if (count_ != nullptr) ++*count_;
  }
  Lease(Lease&&) = delete;
  ~Lease() {
    if (count_ != nullptr) --*count_;
  }
  const kernels::Weight& weight() const { return weight_; }
  const kernels::Tensor& tensor() const { return weight_.plain_NC; }

 private:
  int* count_;
  kernels::Weight weight_;
};

/// A run of the flat arrays that this rank updates: all of it, or with a sharded state its part of one
/// bucket.
struct StatePart {
  std::int64_t flat_begin = 0;  ///< element of the flat arrays
  kernels::Tensor grads;        ///< reduced
  kernels::Tensor master;
  kernels::Tensor moment1;
  kernels::Tensor moment2;
  kernels::Tensor params;                    ///< undefined when the master weights are the parameters
  std::vector<kernels::UpdateRange> ranges;  ///< in elements of the part, without padding; decay 1 where it
                                             ///< applies, else 0; keys without the seed
};

/// Elements of one parameter inside one part that are a box of the logical tensor.
struct StateRun {
  ParamId id = kNoParam;
  std::size_t part = 0;
  std::int64_t begin = 0;  ///< element of the part
  std::int64_t count = 0;
  parallel::LogicalBox box;
  bool owned = true;  ///< false: another rank saves it and counts it in the norm
};

/// All parameters of one rank and the state of their training, as flat arrays in the order of their units:
/// each in full, or in this rank's data-parallel parts. Layers hold ids, never tensors. A prepared form is
/// made at its first use after the parameters changed or were gathered anew, and is counted in memory.
class ParamStore {
 public:
  /// Takes all its memory from `persistent`.
  ParamStore(std::vector<ParamInfo> infos, const PrecisionRecipe& recipe, const ParamPlacement& placement,
             kernels::Backend& backend, kernels::Arena& persistent);

  int count() const { return static_cast<int>(infos_.size()); }
  const ParamInfo& info(ParamId id) const { return infos_.at(static_cast<std::size_t>(id)); }
  const ParamPlacement& placement() const { return placement_; }

  /// A lease on a form; `kNoParam` gives an undefined one (an absent bias).
  Lease use(ParamId id, WeightForm form, kernels::Stream& stream);
  /// Passes use parameters in an order of their own, walk by walk: `parallel::ParamGatherer`.
  void begin_pass(parallel::ParamGatherer::Pass pass) { gatherer_->begin_pass(pass); }
  void begin_walk() { gatherer_->begin_walk(); }

  /// A new step: no gradient has a contribution yet. Its gradients are made on `stream`.
  void begin_step(kernels::Stream& stream);
  /// The gradient, in the rank's shape of the parameter; undefined for `kNoParam`.
  kernels::Tensor grad(ParamId id);
  /// `assign` for the first contribution since the gradient was last reduced, `accumulate` after. Each call
  /// counts as a contribution.
  kernels::WriteMode grad_mode(ParamId id);
  /// The contributions so far are made: starts the reduction of what is complete.
  void reduce_complete_grads();
  /// After the last contribution. What the stream does next sees the sums in the state's parts, and may
  /// update them.
  void finish_grads(std::span<const parallel::PartialSum> partial_sums);
  /// Where a parameter begins in the flat gradients.
  std::int64_t flat_begin(ParamId id) const { return offsets_.at(static_cast<std::size_t>(id)); }

  /// Draws initial values, a function of (seed, name, global element index) alone, and publishes them.
  void initialise(kernels::Stream& stream, std::uint64_t seed);
  /// Makes what the forward pass reads from the master weights, and gathers it where each rank has its part.
  void publish(kernels::Stream& stream);
  /// The gathering alone: after an update, which writes the parameters of its own part.
  void updated(kernels::Stream& stream);

  /// What this rank updates.
  const std::vector<StatePart>& state_parts() const { return parts_; }
  /// Everything of `state_parts` that is not padding, in order.
  const std::vector<StateRun>& state_runs() const { return runs_; }
  /// This rank's part of every bucket of the reduced gradients, whatever it updates: what it counts in the
  /// norm.
  const std::vector<StateRun>& norm_runs() const { return norm_runs_; }
  /// The elements of a norm run.
  kernels::Tensor norm_elements(const StateRun& run) const;
  /// A parameter's own part of an array laid out like the flat ones.
  kernels::Tensor part(const kernels::Tensor& flat, ParamId id) const;
  /// The master weights as one flat array. Only without a sharded state.
  const kernels::Tensor& flat_master() const;

 private:
  /// A form other than the plain one: in its own bytes, or behind each gathered copy of the unit.
  struct Prepared {
    kernels::Tensor bytes;
    std::int64_t offset = 0, size = 0;  ///< behind the unit
    std::int64_t version = -1;
  };
  /// Contributions to the gradients of a unit: how many make it complete, and how many there are.
  struct UnitGrads {
    std::int64_t complete = 0;
    std::int64_t made = 0;
    std::vector<ParamId> ids;
  };
  bool shards(std::int64_t stage) const { return placement_.zero >= stage && placement_.dp.parts() > 1; }
  void lay_out(const PrecisionRecipe& recipe);
  void make_reducer(const PrecisionRecipe& recipe, kernels::Arena& persistent);
  void make_gatherer(const PrecisionRecipe& recipe, kernels::Arena& persistent);
  void take_state(const PrecisionRecipe& recipe, kernels::Arena& persistent);
  kernels::UpdateRange update_range(const StateRun& run) const;
  void list_runs(std::int64_t flat_begin, std::int64_t count, std::size_t part,
                 std::vector<StateRun>& runs) const;

  std::vector<ParamInfo> infos_;
  ParamPlacement placement_;
  std::vector<kernels::Shape> shapes_;  // of this rank
  std::vector<std::int64_t> offsets_;   // elements of the flat arrays
  std::vector<ParamId> by_offset_;
  std::vector<std::int64_t> contributions_;
  std::vector<UnitGrads> unit_grads_;
  std::vector<std::size_t> complete_units_;        // and not yet reduced
  std::vector<std::array<Prepared, 2>> prepared_;  // by fprop, dgrad
  kernels::Backend& backend_;
  kernels::Stream* grads_stream_ = nullptr;
  parallel::BucketLayout buckets_;
  std::optional<parallel::GradReducer> reducer_;
  std::optional<parallel::ParamGatherer> gatherer_;
  kernels::Tensor master_, moment1_, moment2_;
  std::vector<StatePart> parts_;
  std::vector<StateRun> runs_, norm_runs_;
  std::int64_t version_ = 0;
};

}  // namespace trainerd::core
