#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/hf/weight_source.h"

namespace trainerd::core::generate {

struct ScorerOptions {
  std::string device = "auto";  ///< as in the job's key `device`
  std::string
      precision;  ///< "fp32", "bf16" or "fp16"; empty: bf16 if all weights but experts' biases are, else fp32
  std::int64_t threads = 0;  ///< 0: one per core
  std::int64_t longest = 0;  ///< maximum text length in tokens
};

/// A model's logits of the next token after a text, by the forward pass of a training step on one rank. Each
/// call processes the whole text. Of training memory only the weights are allocated.
class TokenScorer {
 public:
  /// Reads the weights. Throws SpecError for wrong options or a text longer than the model's positions,
  /// CapacityError if it does not fit, CheckpointError.
  TokenScorer(const hf::WeightSource& source, const ScorerOptions& options);
  ~TokenScorer();
  TokenScorer(const TokenScorer&) = delete;
  TokenScorer& operator=(const TokenScorer&) = delete;

  /// The logits by id of the token after `tokens`, which has 1 to `longest` tokens. Valid until the next
  /// call.
  std::span<const float> next(std::span<const std::int32_t> tokens);
  /// Device memory in bytes.
  std::int64_t bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::core::generate
