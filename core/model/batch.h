#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "kernels/tensor/tensor.h"
#include "parallel/context/sequence_share.h"

namespace trainerd::core::model {

/// A rank's rows of one microbatch on the device: T tokens of `samples` samples (parallel::SequenceShare).
/// The whole samples consist of `sequences` sequences with bounds `cu_seqlens`; the last ones may be empty.
struct Batch {
  kernels::Tensor tokens_T;       ///< i32
  kernels::Tensor targets_T;      ///< i32
  kernels::Tensor positions_T;    ///< i32
  kernels::Tensor loss_weight_T;  ///< f32
  kernels::Tensor real_T;         ///< i32, for models with experts: 0 for padding; else undefined
  kernels::Tensor cu_seqlens;     ///< i32 [sequences + 1]
  kernels::Tensor reference_P2;   ///< f64, for pairs: see kernels::PreferenceLoss; else undefined
  /// If ranks share samples, by piece of the share: bounds of the sequences' rows in it, i32 [sequences + 1].
  /// With packed samples also kernels::AttentionRows::first_B of these rows, where `first` is the piece's.
  std::array<kernels::Tensor, 2> piece_seqlens = {}, piece_first = {};
  parallel::SequenceShare share;
  std::int64_t samples = 0;
  std::int64_t sequences = 0;
  std::int64_t max_seqlen = 0;
  std::int64_t first_token = 0;  ///< index of the first sample's first token in the global batch
  /// f32 [1]: becomes `crowded_value` if the rank's experts have not enough rows. Undefined: they always
  /// have.
  kernels::Tensor crowded;
  float crowded_value = 1;
  /// f32 [layers, experts]: how many tokens chose each expert is added to the rows of the chunk's layers.
  /// Undefined: it is not counted.
  kernels::Tensor expert_counts;
  std::optional<std::uint64_t> dropout_key;  ///< of the step; none: no dropout
  std::int64_t tokens() const { return tokens_T.size(0); }
};

}  // namespace trainerd::core::model
