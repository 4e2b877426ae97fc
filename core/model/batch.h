#pragma once

#include <cstdint>
#include <optional>

#include "kernels/tensor/tensor.h"

namespace trainerd::core::model {

/// One microbatch on the device, flattened over tokens: T tokens in `sequences` sequences with bounds
/// `cu_seqlens`; the last sequences may be empty.
struct Batch {
  kernels::Tensor tokens_T;       ///< i32
  kernels::Tensor targets_T;      ///< i32
  kernels::Tensor positions_T;    ///< i32
  kernels::Tensor loss_weight_T;  ///< f32
  kernels::Tensor cu_seqlens;     ///< i32 [sequences + 1]
  kernels::Tensor reference_P2;   ///< f64, for pairs: see kernels::PreferenceLoss; else undefined
  std::int64_t sequences = 0;
  std::int64_t max_seqlen = 0;
  std::int64_t first_token = 0;              ///< index of its first token in the global batch
  std::optional<std::uint64_t> dropout_key;  ///< of the step; none: no dropout
  std::int64_t tokens() const { return tokens_T.size(0); }
};

}  // namespace trainerd::core::model
