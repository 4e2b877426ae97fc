#pragma once

#include <cstdint>
#include <string>
#include <vector>

// In what a model's layers differ from each other, and how rotary angles are scaled.

namespace trainerd::core::job {

struct ModelOptions;

enum class RopeScalingKind : std::uint8_t { none, linear, llama3, yarn, longrope };

/// Rotary angles of a model that is made for longer sequences than it began with: core/model/rope.h has the
/// formulas. What the kind does not use has its default.
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1.0;
  std::int64_t original_max_position = 0;  ///< but for linear: the sequences that the model began with
  double low_freq_factor = 1.0;            ///< llama3
  double high_freq_factor = 4.0;           ///< llama3
  double beta_fast = 32.0;                 ///< yarn
  double beta_slow = 1.0;                  ///< yarn
  double attention_factor = 0.0;           ///< yarn, longrope: of cos and sin; 0: by `factor`
  bool truncate = true;                    ///< yarn: the ramp goes from one whole pair to another
  /// longrope, of each pair: of models with sequences of up to `original_max_position`, and of longer ones
  std::vector<double> short_factor = {}, long_factor = {};

  bool operator==(const RopeScaling&) const = default;
};

inline constexpr const char* kSliding = "sliding";
inline constexpr const char* kFull = "full";

/// Which keys the layers' queries see, and how their scores are scaled.
struct AttentionOptions {
  double query_pre_attn_scalar = 0.0;  ///< scores are divided by its root; 0: the size of a head
  std::int64_t window = 0;  ///< of sliding layers: keys that a query sees, its own included; 0: none slides
  /// `kSliding` or `kFull` for each layer, over and over; empty: all slide if there is a window. In its
  /// shortest form.
  std::vector<std::string> pattern = {};
  double sliding_theta =
      0.0;               ///< base of the rotary angles of sliding layers, never scaled; 0: as the others
  bool sinks = false;    ///< a learned logit for each head joins the softmax and carries no value
  double softcap = 0.0;  ///< scaled scores s become softcap tanh(s / softcap); 0: they stay
  double scale = 0.0;    ///< of scores (Granite); 0: 1 / sqrt(query_pre_attn_scalar)

  bool operator==(const AttentionOptions&) const = default;
};

/// What one layer is.
struct LayerOptions {
  bool slides = false;
  std::int64_t window = 0;  ///< 0: every key up to its own

  bool operator==(const LayerOptions&) const = default;
};
/// `layer` counts over the whole model. The one place that reads the pattern.
LayerOptions layer_options(const ModelOptions& model, std::int64_t layer);

/// The shortest pattern that says the same of so many layers; empty where all slide. Words may be any.
std::vector<std::string> shortest_pattern(const std::vector<std::string>& pattern, std::int64_t layers);

}  // namespace trainerd::core::job
