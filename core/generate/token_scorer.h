#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/hf/weight_source.h"

namespace trainerd::core::generate {

struct ScorerOptions {
  std::string device = "auto";  ///< a word of the job's key `device`
  std::string precision;        ///< "fp32" or "bf16"; empty: bf16 where all weights are, else fp32
  std::int64_t threads = 0;     ///< 0: one for each core
  std::int64_t longest = 0;     ///< tokens of the longest text
};

/// A model's scores of the token that follows a text: the forward pass of a training step, on one rank. The
/// whole text goes through it each time. Nothing is kept of a training's memory but the weights.
class TokenScorer {
 public:
  /// Reads the weights. Throws SpecError: the options, a longer text than the model has positions for;
  /// CapacityError: it does not fit; CheckpointError.
  TokenScorer(const hf::WeightSource& source, const ScorerOptions& options);
  ~TokenScorer();
  TokenScorer(const TokenScorer&) = delete;
  TokenScorer& operator=(const TokenScorer&) = delete;

  /// By id, the logits of the token behind `tokens`, which are 1 to `longest`. Good until the next call.
  std::span<const float> next(std::span<const std::int32_t> tokens);
  /// What it needs of the device.
  std::int64_t bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::core::generate
