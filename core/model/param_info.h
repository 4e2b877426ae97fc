#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/ops/update.h"
#include "parallel/data/data_parallel.h"
#include "parallel/tensor/shard.h"

namespace trainerd::core::model {

using ParamId = int;
constexpr ParamId kNoParam = -1;

/// One parameter as declared by the model.
struct ParamInfo {
  std::string name;
  parallel::ShardSpec shard;
  float init_mean = 0;
  float init_stddev = 0;
  kernels::Draw init_draw = kernels::Draw::normal;
  bool decay = false;            ///< weight decay applies
  bool gemm_weight = false;      ///< the weight has prepared forms
  std::int64_t gemm_tokens = 0;  ///< usual number of rows of the activations
  bool projection = false;       ///< of a layer: its GEMMs are in the recipe's format for them
  /// Parameters of a unit are gathered, reduced and freed together: a layer's matrices, or a chunk's vectors,
  /// whose gradients are complete after the walk for input gradients. Each view cuts its own part of a unit.
  std::size_t unit = 0;
  bool vectors = false;  ///< the unit holds vectors
  /// Held by several pipeline ranks next to different neighbours: it gets its own bucket so that all cut it
  /// alike.
  bool cut_alone = false;
  bool expert = false;  ///< held by the ranks of ParamPlacement::expert_dp
  /// Not -1: the biases of this layer's experts, which are updated from counts of tokens, without gradients,
  /// and in fp32 whatever the recipe.
  std::int64_t biases_of_layer = -1;
  bool trainable = true;       ///< false: kept as loaded, without gradient, master weight and states
  std::int64_t grad_uses = 1;  ///< gradient contributions per microbatch: two for a tied embedding

  bool has_grad() const { return trainable && biases_of_layer < 0; }
};

/// This rank's place in the layout, and how its parameters' state is sharded.
struct ParamPlacement {
  std::int64_t tp = 1, tp_rank = 0;
  parallel::DataParallelGroups dp;
  /// Where experts' parameters are apart (ParallelOptions::experts_apart): theirs.
  parallel::DataParallelGroups expert_dp = {};
  bool whole_experts = false;  ///< tp does not cut experts
  /// What is sharded: from 1 the optimizer state, from 2 gradients, from 3 parameters.
  std::int64_t zero = 0;
  std::int64_t microbatches = 1;  ///< per step, at most
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  /// Copies parts from and to host memory; null: nothing is offloaded.
  parallel::HostLink host = {};
  bool offload_params = false, offload_grads = false;

  /// The place of experts' parameters that are apart.
  ParamPlacement of_experts() const {
    ParamPlacement experts = *this;
    experts.dp = expert_dp;
    if (whole_experts) experts.tp = 1, experts.tp_rank = 0;
    return experts;
  }
  /// True if state that ZeRO shards from `stage` on is sharded here. What is offloaded is also handled unit
  /// by unit if its only part is the whole.
  bool shards(std::int64_t stage) const {
    const bool offloaded = stage == 3   ? offload_params
                           : stage == 2 ? offload_grads
                                        : offload_params || offload_grads;
    return zero >= stage && (dp.parts() > 1 || offloaded);
  }
};

}  // namespace trainerd::core::model
