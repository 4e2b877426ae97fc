#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/job/model_options.h"
#include "io/checkpoint/checkpoint.h"

namespace trainerd::core::hf {

/// Mapping between this program's tensors and those of a Hugging Face model. Names have no ".weight" or
/// ".bias"; N is the layer's number, and X that of each expert in turn.
struct TensorRule {
  const char* ours;
  std::vector<const char*> theirs;  ///< stacked by rows, in this order
  bool transposed = false;          ///< their weight is [inputs, outputs]
  bool bare = false;                ///< their name has no ".weight"
  bool exact = false;               ///< kept in fp32
  /// Their only tensor has those of all experts, by its first dim, and their biases are in one named "_bias"
  /// behind its name; rows of gates and up projections alternate.
  bool stacked = false, alternate = false;
};

/// Rules for families with rotary positions; for those with norms after attention and MLP; for Phi-3, whose
/// projections are merged like ours; and for GPT-2.
std::span<const TensorRule> llama_tensors();
std::span<const TensorRule> gemma_tensors();
std::span<const TensorRule> phi3_tensors();
std::span<const TensorRule> gpt2_tensors();
/// Those of Mixtral, and of other families with experts.
std::span<const TensorRule> mixtral_tensors();
std::span<const TensorRule> moe_tensors();
std::span<const TensorRule> qwen2_moe_tensors();
std::span<const TensorRule> glm_moe_tensors();
std::span<const TensorRule> minimax_tensors();
std::span<const TensorRule> deepseek_tensors();
std::span<const TensorRule> gpt_oss_tensors();

/// A range of rows of our tensor, and the tensor of theirs with these rows.
struct TheirTensor {
  std::string name;
  std::int64_t first_row = 0, rows = 0;
};
/// One of our tensors, as in checkpoints.
struct MappedTensor {
  std::string name;
  std::vector<std::int64_t> shape;  ///< [rows] or [rows, columns]
  std::vector<TheirTensor> parts;   ///< all rows, in order
  bool transposed = false;          ///< the only part is [columns, rows]
  bool exact = false;               ///< in fp32 whatever the other tensors' dtype
  std::int64_t stacked = 0;         ///< not 0: the only part is [stacked, ...], as TensorRule::stacked
  bool alternate = false;           ///< TensorRule::alternate

  std::int64_t columns() const { return shape.size() == 2 ? shape[1] : 1; }
  /// Of a stacked tensor: rows of each expert; and the row in their tensor for row `row` of an expert.
  std::int64_t expert_rows() const { return shape[0] / stacked; }
  std::int64_t their_row(std::int64_t row) const {
    const std::int64_t half = expert_rows() / 2;
    if (!alternate) return row;
    return row < half ? 2 * row : 2 * (row - half) + 1;
  }
  /// Shape of a part in their file.
  std::vector<std::int64_t> their_shape(const TheirTensor& part) const;
};

/// Our names of experts' biases: in fp32 whatever the other tensors' dtype, and without averages (ema).
std::set<std::string> expert_biases(const job::ModelOptions& model);

/// All tensors of the model, unsharded, in order.
std::vector<io::TensorSlice> model_tensors(const job::ModelOptions& model);
/// The same, mapped to their tensors.
std::vector<MappedTensor> map_tensors(std::span<const TensorRule> rules, const job::ModelOptions& model);

}  // namespace trainerd::core::hf
