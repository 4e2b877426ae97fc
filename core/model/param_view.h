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

/// The form in which an operator reads a parameter.
enum class WeightForm : std::uint8_t { plain, fprop, dgrad };

/// A parameter in one form, held while operators that read it are issued. Its memory may move when there is
/// no lease.
class Lease {
 public:
  /// `count`: number of leases on the memory of `weight`; null for an absent parameter.
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

/// A range of a view's flat arrays that this rank updates: all of it, or with a sharded state its part of one
/// bucket.
struct StatePart {
  std::int64_t flat_begin = 0;  ///< first element in the flat arrays
  kernels::Tensor grads;        ///< reduced
  kernels::Tensor master;
  std::vector<kernels::Tensor> states;       ///< optimizer states, in the order of `ParamView::states`
  kernels::Tensor params;                    ///< undefined if the master weights are the parameters
  std::vector<kernels::UpdateRange> ranges;  ///< `update_range` of its runs
  /// what is in host memory
  bool host_grads = false, host_master = false, host_states = false, host_params = false;
};

/// Consecutive elements of one parameter in one part that form a box of the logical tensor.
struct StateRun {
  ParamId id = kNoParam;
  std::size_t part = 0;
  std::int64_t begin = 0;  ///< first element in the part
  std::int64_t count = 0;
  parallel::LogicalBox box;
  bool owned = true;  ///< false: another rank saves it and counts it in the norm
};

/// A state that is an average of the weights: always in fp32, and initially equal to the weights.
inline constexpr const char* kAverageState = "ema";
/// The dtype in which a view keeps a state.
kernels::DType state_dtype(const std::string& state, const job::PrecisionRecipe& recipe);

/// Parameters that are placed and updated alike.
struct ViewSpec {
  std::vector<ParamId> ids;
  std::vector<std::string> states;  ///< what the optimizer keeps per element
  /// `matrix`: each tensor is cut into parts separately, so that every rank holds an equal share of it.
  /// `element`: a bucket is cut as a whole. A tensor of blocks is also cut separately, between rows of
  /// blocks.
  parallel::Granularity cut = parallel::Granularity::element;
  /// False: parameters kept as loaded. They are held only in the dtype that operators read, unsharded below
  /// ZeRO 3, and have no gradients.
  bool trainable = true;
  bool experts = false;  ///< ParamInfo::expert
  /// ParamInfo::biases_of_layer: without gradients, in fp32, and whole on every rank.
  bool expert_biases = false;
};

/// The arenas of a rank's parameters and their state. Several may be the same arena.
struct ParamMemory {
  kernels::Arena& persistent;  ///< all that is not in the others
  kernels::Arena& states;      ///< master weights and optimizer states
  kernels::Arena& host;        ///< parts of parameters and gradients that ParamPlacement offloads
};

/// Parameters of one rank that are placed and updated alike, with their training state, as flat arrays in the
/// order of their units: complete, or this rank's data-parallel parts. A view has its own buckets,
/// reductions, gathers and states; two views share no collective.
class ParamView {
 public:
  /// `infos` are of all parameters of the rank and must outlive the view.
  ParamView(const std::vector<ParamInfo>& infos, const ViewSpec& spec, const job::PrecisionRecipe& recipe,
            const ParamPlacement& placement, kernels::Backend& backend, const ParamMemory& memory);
  ParamView(const ParamView&) = delete;
  ParamView& operator=(const ParamView&) = delete;

  const std::vector<ParamId>& ids() const { return ids_; }
  /// True if training changes the parameters.
  bool trainable() const { return trainable_; }
  /// True if it does by gradients.
  bool has_grads() const { return trainable_ && !expert_biases_; }
  const ParamInfo& info(ParamId id) const { return infos_.at(static_cast<std::size_t>(id)); }
  const ParamPlacement& placement() const { return placement_; }
  const parallel::BucketLayout& buckets() const { return buckets_; }

  using ObserveGrad = std::function<void(kernels::Stream&, const kernels::Tensor& grad)>;

  // As in ParamStore, for this view's parameters.
  Lease use(ParamId id, WeightForm form, kernels::Stream& stream);
  kernels::GemmFormat gemm_format(ParamId id) const {
    return info(id).projection ? gemm_ : kernels::GemmFormat::plain;
  }
  void begin_pass(const parallel::ParamGatherer::PassKind& kind) { gatherer_->begin_pass(kind); }
  void begin_walk() { gatherer_->begin_walk(); }
  void begin_step(kernels::Stream& stream, std::int64_t microbatches);
  kernels::Tensor grad(ParamId id);
  kernels::WriteMode grad_mode(ParamId id);
  void reduce_complete_grads();
  void observe_grads(const ObserveGrad& observe) { observe_grad_ = observe; }
  void finish_grads();
  void finish_gathers(kernels::Stream& stream) { gatherer_->finish(stream); }
  void initialise(kernels::Stream& stream, std::uint64_t seed);
  void begin_average(kernels::Stream& stream);
  void read_average(kernels::Stream& stream, bool average);
  void publish(kernels::Stream& stream);
  void updated(kernels::Stream& stream);

  /// Elements of a parameter's gradient from `begin` on are partial sums on each rank of `group`.
  void add_partial_sum(ParamId id, std::int64_t begin, std::int64_t count, parallel::Communicator& group,
                       const char* label);
  /// Offset of a parameter in the flat arrays.
  std::int64_t flat_begin(ParamId id) const { return of(id).offset; }

  /// Names of the optimizer's states.
  const std::vector<std::string>& states() const { return states_; }
  /// The parts that this rank updates.
  const std::vector<StatePart>& state_parts() const { return parts_; }
  /// All elements of `state_parts` except padding, in order.
  const std::vector<StateRun>& state_runs() const { return runs_; }
  /// True if this rank saves the state, out of the data-parallel ranks with the same state.
  bool saves_state() const;
  /// The groups of ranks with the same state. Broadcasts from rank 0 of each, in this order, give all of them
  /// the state of the rank that saves it. Empty if no other rank has it.
  std::vector<parallel::Communicator*> replica_groups() const;
  /// This rank's part of every bucket of the reduced gradients, also of parts that others update: its
  /// contribution to the norm.
  const std::vector<StateRun>& norm_runs() const { return norm_runs_; }
  /// The square sums of a norm run.
  kernels::BlockSquareSums norm_sums(const StateRun& run, const kernels::Tensor& sums) const;
  /// Arguments for updating a run: decay 1 if it applies, else 0; keys without the seed.
  kernels::UpdateRange update_range(const StateRun& run) const;
  /// A parameter's master weights. Only for an unsharded state.
  kernels::Tensor master(ParamId id) const;
  /// Calls `show` for every box of which other ranks may hold a copy, according to the placement, with its
  /// kind: "" for master weights, "optimizer.moment1." for a state, "copy of " for parameters that operators
  /// read, unless these are the master weights.
  using ShowCopy = std::function<void(const std::string& what, const StateRun& run,
                                      const kernels::Tensor& elements, bool on_host)>;
  void each_copy(const ShowCopy& show) const;

 private:
  /// A form other than the plain one: in its own memory, or after each gathered copy of the unit.
  struct Prepared {
    kernels::Tensor bytes;
    std::int64_t offset = 0, size = 0;  ///< after the unit
    std::int64_t version = -1;
  };
  struct Param {
    bool mine = false;
    std::size_t unit = 0;                   ///< in this view
    kernels::Shape shape;                   ///< on this rank
    std::int64_t offset = 0;                ///< in the flat arrays
    std::int64_t made_grads = 0;            ///< contributions since the last reduction
    std::array<Prepared, 2> prepared = {};  ///< fprop, dgrad
  };
  /// Gradient contributions of a unit: the number that completes it, and the number so far.
  struct UnitGrads {
    std::int64_t uses = 0;         ///< contributions of a microbatch
    bool each_microbatch = false;  ///< reduced after each one, else after the last
    std::int64_t complete = 0;
    std::int64_t made = 0;
    std::vector<ParamId> ids;
  };
  Param& of(ParamId id) { return params_.at(static_cast<std::size_t>(id)); }
  const Param& of(ParamId id) const { return params_.at(static_cast<std::size_t>(id)); }
  void lay_out(const job::PrecisionRecipe& recipe);
  void changed(kernels::Stream& stream);
  void make_reducer(const job::PrecisionRecipe& recipe, const ParamMemory& memory);
  void make_gatherer(const job::PrecisionRecipe& recipe, const ParamMemory& memory);
  void take_state(const job::PrecisionRecipe& recipe, const ParamMemory& memory);
  bool offloads_grads() const;
  bool held_by_others(ParamId id, std::int64_t data_parallel_copies) const;
  void list_runs(std::int64_t flat_begin, std::int64_t count, std::size_t part,
                 std::vector<StateRun>& runs) const;

  const std::vector<ParamInfo>& infos_;
  std::vector<ParamId> ids_;  // in the order of the flat arrays
  std::vector<std::string> states_;
  parallel::Granularity cut_;
  bool trainable_, expert_biases_;
  kernels::GemmFormat gemm_;
  ParamPlacement placement_;
  std::vector<Param> params_;  // by id
  std::vector<UnitGrads> unit_grads_;
  ObserveGrad observe_grad_;
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
