#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/job/train_options.h"
#include "core/model/param_info.h"
#include "kernels/backend/backend.h"
#include "parallel/data/buckets.h"
#include "parallel/data/grad_reducer.h"
#include "parallel/data/param_gatherer.h"
#include "parallel/tensor/shard.h"

namespace trainerd::core::model {

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

/// A run of a view's flat arrays that this rank updates: all of it, or with a sharded state its part of one
/// bucket.
struct StatePart {
  std::int64_t flat_begin = 0;  ///< element of the flat arrays
  kernels::Tensor grads;        ///< reduced
  kernels::Tensor master;
  std::vector<kernels::Tensor> states;       ///< of the optimizer, in the order of `ParamView::states`
  kernels::Tensor params;                    ///< undefined when the master weights are the parameters
  std::vector<kernels::UpdateRange> ranges;  ///< `update_range` of its runs
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

/// A state that is an average of the weights: in fp32 whatever the moments are, and at first the weights
/// themselves.
inline constexpr const char* kAverageState = "ema";
/// What a view keeps a state in.
kernels::DType state_dtype(const std::string& state, const job::PrecisionRecipe& recipe);

/// Parameters that are placed and updated alike.
struct ViewSpec {
  std::vector<ParamId> ids;
  std::vector<std::string> states;  ///< what the optimizer keeps for each element
  /// `matrix`: each tensor is cut into parts by itself, so that every rank holds as much of it; `element`:
  /// what is in a bucket is cut as one. A tensor of blocks is cut by itself too, between rows of blocks.
  parallel::Granularity cut = parallel::Granularity::element;
  /// False: parameters that stay as they were loaded. They are held in the dtype that operators read and in
  /// no other, whole on every rank below ZeRO 3, and have no gradients.
  bool trainable = true;
};

/// Parameters of one rank that are placed and updated alike, and the state of their training, as flat arrays
/// in the order of their units: each in full, or in this rank's data-parallel parts. A view has its own
/// buckets, reductions, gathers and states; parameters of two views share no collective.
class ParamView {
 public:
  /// `infos` outlives the view and are those of all parameters of the rank. Takes all its memory from
  /// `persistent`.
  ParamView(const std::vector<ParamInfo>& infos, const ViewSpec& spec, const job::PrecisionRecipe& recipe,
            const ParamPlacement& placement, kernels::Backend& backend, kernels::Arena& persistent);
  ParamView(const ParamView&) = delete;
  ParamView& operator=(const ParamView&) = delete;

  const std::vector<ParamId>& ids() const { return ids_; }
  bool trainable() const { return trainable_; }
  const ParamInfo& info(ParamId id) const { return infos_.at(static_cast<std::size_t>(id)); }
  const ParamPlacement& placement() const { return placement_; }
  const parallel::BucketLayout& buckets() const { return buckets_; }

  // As of ParamStore, for the view's own parameters.
  Lease use(ParamId id, WeightForm form, kernels::Stream& stream);
  void begin_pass(parallel::ParamGatherer::Pass pass) { gatherer_->begin_pass(pass); }
  void begin_walk() { gatherer_->begin_walk(); }
  void begin_step(kernels::Stream& stream);
  kernels::Tensor grad(ParamId id);
  kernels::WriteMode grad_mode(ParamId id);
  void reduce_complete_grads();
  void finish_grads();
  void finish_gathers(kernels::Stream& stream) { gatherer_->finish(stream); }
  void initialise(kernels::Stream& stream, std::uint64_t seed);
  void begin_average(kernels::Stream& stream);
  void read_average(kernels::Stream& stream, bool average);
  void publish(kernels::Stream& stream);
  void updated(kernels::Stream& stream);

  /// Elements of a parameter's gradient from `begin` on are a summand on each rank of `group`.
  void add_partial_sum(ParamId id, std::int64_t begin, std::int64_t count, parallel::Communicator& group,
                       const char* label);
  /// Where a parameter begins in the flat arrays.
  std::int64_t flat_begin(ParamId id) const { return of(id).offset; }

  /// Names of the optimizer's states.
  const std::vector<std::string>& states() const { return states_; }
  /// What this rank updates.
  const std::vector<StatePart>& state_parts() const { return parts_; }
  /// Everything of `state_parts` that is not padding, in order.
  const std::vector<StateRun>& state_runs() const { return runs_; }
  /// Whether it is this rank that saves the state, of the data-parallel ranks that hold the same.
  bool saves_state() const;
  /// The groups of ranks that hold the same state. A broadcast from rank 0 of each, in this order, brings all
  /// of them the state of the rank that saves it. Empty: no other rank holds it.
  std::vector<parallel::Communicator*> replica_groups() const;
  /// This rank's part of every bucket of the reduced gradients, whatever it updates: what it counts in the
  /// norm.
  const std::vector<StateRun>& norm_runs() const { return norm_runs_; }
  /// The elements of a norm run.
  kernels::Tensor norm_elements(const StateRun& run) const;
  /// How an update sees a run: decay 1 where it applies, else 0; keys without the seed.
  kernels::UpdateRange update_range(const StateRun& run) const;
  /// A parameter's master weights. Only without a sharded state.
  kernels::Tensor master(ParamId id) const;
  /// Shows every box that other ranks may hold the same copy of, as far as the placement tells, and what it
  /// is: "" for master weights, "optimizer.moment1." for a state, "copy of " for what operators read where
  /// that is not the master weights.
  using ShowCopy =
      std::function<void(const std::string& what, const StateRun& run, const kernels::Tensor& elements)>;
  void each_copy(const ShowCopy& show) const;

 private:
  /// A form other than the plain one: in its own bytes, or behind each gathered copy of the unit.
  struct Prepared {
    kernels::Tensor bytes;
    std::int64_t offset = 0, size = 0;  ///< behind the unit
    std::int64_t version = -1;
  };
  struct Param {
    bool mine = false;
    std::size_t unit = 0;                   ///< of this view
    kernels::Shape shape;                   ///< of this rank
    std::int64_t offset = 0;                ///< element of the flat arrays
    std::int64_t made_grads = 0;            ///< contributions since the last reduction
    std::array<Prepared, 2> prepared = {};  ///< by fprop, dgrad
  };
  /// Contributions to the gradients of a unit: how many make it complete, and how many there are.
  struct UnitGrads {
    std::int64_t complete = 0;
    std::int64_t made = 0;
    std::vector<ParamId> ids;
  };
  Param& of(ParamId id) { return params_.at(static_cast<std::size_t>(id)); }
  const Param& of(ParamId id) const { return params_.at(static_cast<std::size_t>(id)); }
  void lay_out(const job::PrecisionRecipe& recipe);
  void changed(kernels::Stream& stream);
  void make_reducer(const job::PrecisionRecipe& recipe, kernels::Arena& persistent);
  void make_gatherer(const job::PrecisionRecipe& recipe, kernels::Arena& persistent);
  void take_state(const job::PrecisionRecipe& recipe, kernels::Arena& persistent);
  bool held_by_others(ParamId id, std::int64_t data_parallel_copies) const;
  void list_runs(std::int64_t flat_begin, std::int64_t count, std::size_t part,
                 std::vector<StateRun>& runs) const;

  const std::vector<ParamInfo>& infos_;
  std::vector<ParamId> ids_;  // in the order of the flat arrays
  std::vector<std::string> states_;
  parallel::Granularity cut_;
  bool trainable_;
  ParamPlacement placement_;
  std::vector<Param> params_;  // by id
  std::vector<UnitGrads> unit_grads_;
  std::vector<std::size_t> complete_units_;  // and not yet reduced
  std::vector<parallel::PartialSum> partial_sums_;
  kernels::Backend& backend_;
  kernels::Stream* grads_stream_ = nullptr;
  parallel::BucketLayout buckets_;
  std::optional<parallel::GradReducer> reducer_;  ///< of trainable parameters
  std::optional<parallel::ParamGatherer> gatherer_;
  kernels::Tensor master_;
  std::vector<kernels::Tensor> flat_states_;
  std::vector<StatePart> parts_;
  std::vector<StateRun> runs_, norm_runs_;
  std::int64_t version_ = 0;
};

}  // namespace trainerd::core::model
