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

/// One parameter as the model declares it.
struct ParamInfo {
  std::string name;
  parallel::ShardSpec shard;
  float init_mean = 0;
  float init_stddev = 0;
  kernels::Draw init_draw = kernels::Draw::normal;
  bool decay = false;            ///< weight decay applies
  bool gemm_weight = false;      ///< has prepared forms
  std::int64_t gemm_tokens = 0;  ///< rows of the activation it will most often meet
  /// Parameters of a unit are gathered, reduced and freed together: a layer's matrices, or the vectors of a
  /// chunk, whose gradients are complete after the walk for input gradients. Each view cuts its own part of a
  /// unit.
  std::size_t unit = 0;
  bool vectors = false;  ///< the unit's kind
  /// Held by several pipeline ranks next to different neighbours: a bucket of its own, so that all cut it
  /// alike.
  bool cut_alone = false;
  bool trainable = true;  ///< false: it stays as it was loaded, without gradient, master weight and states
  std::int64_t grad_uses = 1;  ///< contributions to its gradient in a microbatch: two for a tied embedding
};

/// Where this rank stands for its parameters, and what it keeps of their state.
struct ParamPlacement {
  std::int64_t tp = 1, tp_rank = 0;
  parallel::DataParallelGroups dp;
  /// What is in parts: from 1 the optimizer's state, from 2 gradients, from 3 parameters.
  std::int64_t zero = 0;
  std::int64_t microbatches = 1;  ///< per step
  std::int64_t bucket_bytes = std::int64_t{25} << 20;

  /// Whether what ZeRO shards from `stage` on is in parts here.
  bool shards(std::int64_t stage) const { return zero >= stage && dp.parts() > 1; }
};

}  // namespace trainerd::core::model
