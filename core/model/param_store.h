#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/train/options.h"
#include "kernels/backend.h"
#include "parallel/buckets.h"
#include "parallel/communicator.h"
#include "parallel/shard.h"

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
};

/// Where this rank stands for its parameters, and what it keeps of their state.
struct ParamPlacement {
  std::int64_t tp = 1, tp_rank = 0;
  std::int64_t dp = 1, dp_rank = 0;
  bool sharded_state = false;  ///< ZeRO 1: master weights and moments of this rank's part of every bucket alone
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
};

/// The form of a parameter that an operator reads.
enum class WeightForm : std::uint8_t { plain, fprop, dgrad };

class ParamStore;

/// A parameter in one form, held while operators that read it are issued. Residence may change when no lease is out.
class Lease {
 public:
  Lease(ParamStore& store, const kernels::Weight& weight);
  Lease(Lease&&) = delete;
  ~Lease();
  const kernels::Weight& weight() const { return weight_; }
  const kernels::Tensor& tensor() const { return weight_.plain_NC; }

 private:
  ParamStore& store_;
  kernels::Weight weight_;
};

/// A run of the flat arrays that this rank updates: all of it, or with a sharded state its part of one bucket.
struct StatePart {
  std::int64_t flat_begin = 0;  ///< element of the flat arrays
  kernels::Tensor grads;        ///< reduced
  kernels::Tensor master;
  kernels::Tensor moment1;
  kernels::Tensor moment2;
  kernels::Tensor params;       ///< undefined when the master weights are the parameters
  std::vector<kernels::UpdateRange> ranges;  ///< in elements of the part, without padding; decay 1 where it applies, else 0
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

/// All parameters of one rank and the state of their training, as flat arrays in declaration order: gradients and what the
/// forward pass reads in full; master weights and moments in full or in this rank's data-parallel parts. Layers hold ids,
/// never tensors. A prepared form is made at its first use after the parameters changed, and is counted in memory.
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
  /// The gradient, in the rank's shape of the parameter; undefined for `kNoParam`.
  kernels::Tensor grad(ParamId id) const;
  /// `assign` for the first contribution of a step, `accumulate` after. Each call counts as a contribution.
  kernels::WriteMode grad_mode(ParamId id);
  /// A new step: no gradient has a contribution yet.
  void begin_step();
  /// After backward: zeroes the gradient of each parameter that had no contribution.
  void complete_grads(kernels::Stream& stream);
  /// The parameters changed: every prepared form is out of date.
  void changed() { ++version_; }

  /// Draws initial values, a function of (seed, name, global element index) alone, and publishes them.
  void initialise(kernels::Stream& stream, std::uint64_t seed, parallel::Communicator& dp);
  /// Makes what the forward pass reads from the master weights, and gathers it over dp where each rank has its part.
  void publish(kernels::Stream& stream, parallel::Communicator& dp);
  /// The gathering alone: after an update, which writes the parameters of its own part.
  void gather_params(kernels::Stream& stream, parallel::Communicator& dp);

  const parallel::BucketPlan& buckets() const { return buckets_; }
  const kernels::Tensor& flat_grads() const { return grads_; }
  /// This rank's parts of the reduced gradients, in bucket order; with dp 1 the flat gradients themselves.
  const kernels::Tensor& grad_parts() const { return grad_parts_; }
  /// What this rank updates.
  const std::vector<StatePart>& state_parts() const { return parts_; }
  /// Everything of `state_parts` that is not padding, in order.
  const std::vector<StateRun>& state_runs() const { return runs_; }
  /// This rank's part of every bucket of the reduced gradients, whatever it updates: what it counts in the norm.
  const std::vector<StateRun>& norm_runs() const { return norm_runs_; }
  /// The elements of a norm run.
  kernels::Tensor norm_elements(const StateRun& run) const;
  /// A parameter's own part of an array laid out like the flat ones.
  kernels::Tensor part(const kernels::Tensor& flat, ParamId id) const;
  /// The master weights as one flat array. Only without a sharded state.
  const kernels::Tensor& flat_master() const;

 private:
  friend class Lease;
  struct Prepared {
    kernels::Tensor bytes;
    std::int64_t version = -1;
  };
  void take_state(const PrecisionRecipe& recipe, kernels::Arena& persistent);
  void take_prepared(kernels::Arena& persistent);
  void list_runs(std::int64_t flat_begin, std::int64_t count, std::size_t part, std::vector<StateRun>& runs) const;

  std::vector<ParamInfo> infos_;
  ParamPlacement placement_;
  std::vector<kernels::Shape> shapes_;  // of this rank
  std::vector<std::int64_t> offsets_;   // elements
  std::vector<bool> contributed_;
  std::vector<std::array<Prepared, 2>> prepared_;  // by fprop, dgrad
  kernels::Backend& backend_;
  parallel::BucketPlan buckets_;
  kernels::Tensor grads_, grad_parts_, params_, master_, moment1_, moment2_;
  std::vector<StatePart> parts_;
  std::vector<StateRun> runs_, norm_runs_;
  std::int64_t version_ = 0;
  int leases_ = 0;
};

}  // namespace trainerd::core
