#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Differences between a model's layers, and scaling of rotary angles.

namespace trainerd::core::job {

struct ModelOptions;

enum class RopeScalingKind : std::uint8_t { none, linear, llama3, yarn, longrope };

/// Scaled rotary angles of a model extended to longer sequences; core/model/rope.h has the formulas. Options
/// that the kind does not use have their defaults.
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

/// Which keys the layers' queries see, and how scores are scaled.
struct AttentionOptions {
  double query_pre_attn_scalar = 0.0;  ///< scores are divided by its root; 0: the head size
  std::int64_t window = 0;             ///< keys per query in sliding layers, its own included; 0: no sliding
  /// `kSliding` or `kFull` per layer, repeated; empty: all layers slide if there is a window. In its shortest
  /// form.
  std::vector<std::string> pattern = {};
  double sliding_theta = 0.0;  ///< unscaled rotary base of sliding layers; 0: same as the others
  bool sinks = false;          ///< a learned logit per head joins the softmax and carries no value
  double softcap = 0.0;        ///< scaled scores s become softcap tanh(s / softcap); 0: off
  double scale = 0.0;          ///< factor of scores (Granite); 0: 1 / sqrt(query_pre_attn_scalar)

  bool operator==(const AttentionOptions&) const = default;
};

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values are projected from one latent
/// vector per token, and queries from another one. Names as in Hugging Face's configurations.
struct MlaOptions {
  std::int64_t q_lora_rank = 0;       ///< size of the queries' latent; 0: none, projected from the token
  std::int64_t kv_lora_rank = 0;      ///< size of the latent of keys and values; 0: no latent attention
  std::int64_t qk_nope_head_dim = 0;  ///< unrotated elements of a query or key head
  std::int64_t qk_rope_head_dim = 0;  ///< rotated elements; the same for all key heads
  std::int64_t v_head_dim = 0;

  bool on() const { return kv_lora_rank > 0; }
  bool operator==(const MlaOptions&) const = default;
};

/// Options of one layer.
struct LayerOptions {
  bool slides = false;
  std::int64_t window = 0;  ///< 0: no window, plain causal attention
  bool experts = false;     ///< its MLP is one of experts

  bool operator==(const LayerOptions&) const = default;
};
/// `layer` is the index in the whole model. This is the only reader of what tells layers apart.
LayerOptions layer_options(const ModelOptions& model, std::int64_t layer);

/// The shortest equivalent pattern for `layers` layers; empty if all slide. Words are not checked.
std::vector<std::string> shortest_pattern(const std::vector<std::string>& pattern, std::int64_t layers);

}  // namespace trainerd::core::job
