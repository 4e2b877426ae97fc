#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/job/model_options.h"
#include "io/checkpoint/checkpoint.h"

namespace trainerd::core::hf {

/// How tensors of this program are made of those of a Hugging Face model. Names have no ".weight" or ".bias";
/// N is the layer's number.
struct TensorRule {
  const char* ours;
  std::vector<const char*> theirs;  ///< stacked by rows, in this order
  bool transposed = false;          ///< their weight is [inputs, outputs]
};

/// The rules of families with rotary positions; of those with norms after attention and MLP; of Phi-3, whose
/// projections are merged as here; and of GPT-2.
std::span<const TensorRule> llama_tensors();
std::span<const TensorRule> gemma_tensors();
std::span<const TensorRule> phi3_tensors();
std::span<const TensorRule> gpt2_tensors();

/// Rows of one of our tensors, and the tensor of theirs that they are.
struct TheirTensor {
  std::string name;
  std::int64_t first_row = 0, rows = 0;
};
/// One tensor of ours, as checkpoints hold it.
struct MappedTensor {
  std::string name;
  std::vector<std::int64_t> shape;  ///< [rows] or [rows, columns]
  std::vector<TheirTensor> parts;   ///< all rows, in order
  bool transposed = false;          ///< the one part is [columns, rows]

  std::int64_t columns() const { return shape.size() == 2 ? shape[1] : 1; }
  /// Of a part, as their file has it.
  std::vector<std::int64_t> their_shape(const TheirTensor& part) const;
};

/// Every tensor of the model, each whole, in its order.
std::vector<io::TensorSlice> model_tensors(const job::ModelOptions& model);
/// The same with theirs.
std::vector<MappedTensor> map_tensors(std::span<const TensorRule> rules, const job::ModelOptions& model);

}  // namespace trainerd::core::hf
