#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/hf/weight_source.h"

namespace trainerd::core::hf {

/// Adapters of one merged weight, as in a checkpoint: parallel/tensor/adapter.h.
struct WeightAdapters {
  std::string weight;                 ///< "layers.0.qkv.weight"
  std::vector<std::size_t> segments;  ///< projections with an adapter, by position in the weight
  bool whole = false;                 ///< one adapter for all rows, as if the weight were one projection
  std::vector<std::int64_t> rows;     ///< rows of each projection
  std::int64_t columns = 0;           ///< inputs
  std::vector<float> a;               ///< [segments x rank, columns]
  std::vector<float> b;               ///< [all rows, rank]
};

/// A checkpoint of a run that trained adapters (LoRA). Reads only the adapters' weights.
class AdapterCheckpoint {
 public:
  AdapterCheckpoint(const std::string& path, Weights weights);
  ~AdapterCheckpoint();

  const std::string& path() const { return path_; }
  /// The model, including its `lora`.
  const job::ModelOptions& model() const { return model_; }
  const Origin& origin() const { return origin_; }
  const std::string& tokenizer() const { return tokenizer_; }
  kernels::DType dtype() const { return dtype_; }
  /// The weights with adapters, in the model's order.
  const std::vector<std::string>& weights() const { return weights_; }
  WeightAdapters read(const std::string& weight) const;
  /// Reads everything once. Throws CheckpointError that names a damaged file.
  void verify() const;

 private:
  struct Reader;
  std::string path_;
  std::unique_ptr<Reader> reader_;
  job::ModelOptions model_;
  Origin origin_;
  std::string tokenizer_;
  kernels::DType dtype_ = kernels::DType::f32;
  std::vector<std::string> weights_;
};

/// The checkpoint at `path` (or the newest there) if it holds adapters. Null if it does not, or if there is
/// none.
std::unique_ptr<AdapterCheckpoint> open_adapters(const std::string& path, Weights weights = Weights::of_step);

/// The model of adapters merged into their base: W + alpha / rank B A, in fp32, rounded once. `moved`: the
/// base's current path; empty: unchanged. Throws CheckpointError if it is not the base that they were trained
/// with.
std::unique_ptr<WeightSource> merged_weights(std::unique_ptr<AdapterCheckpoint> adapters,
                                             const std::string& moved);

/// Like `open_weights`, but a checkpoint of adapters gives the model merged with its base, which is checked.
std::unique_ptr<WeightSource> open_model(const std::string& path);

}  // namespace trainerd::core::hf
