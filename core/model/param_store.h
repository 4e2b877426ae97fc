#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/train/options.h"
#include "kernels/backend.h"
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

/// All parameters of one rank and the state of their training, as flat arrays in declaration order: master weights,
/// moments and gradients in the recipe's dtypes, and what the forward pass reads. Layers hold ids, never tensors. A
/// prepared form is made at its first use after the parameters changed, and is counted in memory.
class ParamStore {
 public:
  /// Takes all its memory from `persistent`.
  ParamStore(std::vector<ParamInfo> infos, const PrecisionRecipe& recipe, kernels::Backend& backend,
             kernels::Arena& persistent);

  int count() const { return static_cast<int>(infos_.size()); }
  const ParamInfo& info(ParamId id) const { return infos_.at(static_cast<std::size_t>(id)); }

  /// A lease on a form; `kNoParam` gives an undefined one (an absent bias).
  Lease use(ParamId id, WeightForm form, kernels::Stream& stream);
  /// The gradient, in the shape of the parameter; undefined for `kNoParam`.
  kernels::Tensor grad(ParamId id) const;
  /// `assign` for the first contribution of a step, `accumulate` after. Each call counts as a contribution.
  kernels::WriteMode grad_mode(ParamId id);
  /// A new step: no gradient has a contribution yet.
  void begin_step();
  /// After backward: zeroes the gradient of each parameter that had no contribution.
  void complete_grads(kernels::Stream& stream);
  /// The parameters changed: every prepared form is out of date.
  void changed() { ++version_; }

  /// Draws initial values, a function of (seed, name, global element index) alone.
  void initialise(kernels::Stream& stream, std::uint64_t seed);
  /// Makes what the forward pass reads from the master weights: after loading them.
  void publish(kernels::Stream& stream);

  // The flat arrays, padded to the alignment of each parameter; padding stays zero.
  const kernels::Tensor& flat_master() const { return master_; }
  const kernels::Tensor& flat_moment1() const { return moment1_; }
  const kernels::Tensor& flat_moment2() const { return moment2_; }
  const kernels::Tensor& flat_grads() const { return grads_; }
  /// Undefined when the master weights are the parameters.
  kernels::Tensor flat_params() const { return params_.data == master_.data ? kernels::Tensor{} : params_; }
  /// A parameter's own part of one of the flat arrays.
  kernels::Tensor part(const kernels::Tensor& flat, ParamId id) const;
  /// Runs of the flat arrays with one weight decay; padding is left out.
  std::vector<kernels::UpdateRange> update_ranges(float weight_decay) const;

 private:
  friend class Lease;
  struct Prepared {
    kernels::Tensor bytes;
    std::int64_t version = -1;
  };
  std::vector<ParamInfo> infos_;
  std::vector<std::int64_t> offsets_;  // elements
  std::vector<bool> contributed_;
  std::vector<std::array<Prepared, 2>> prepared_;  // by fprop, dgrad
  kernels::Backend& backend_;
  kernels::Tensor master_, moment1_, moment2_, grads_, params_;
  std::int64_t version_ = 0;
  int leases_ = 0;
};

}  // namespace trainerd::core
