#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainerd::core::job {

/// Names of a layer's projections in Hugging Face models, in the order of the layer: kProjections for models
/// with a gated MLP; kMergedProjections if query, key and value, or gate and up, share one A (for models that
/// merge them: Phi-3); kGpt2Projections for GPT-2, where `c_proj` is the output projection of both attention
/// and MLP.
inline constexpr std::array<std::string_view, 7> kProjections{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                              "gate_proj", "up_proj", "down_proj"};
inline constexpr std::array<std::string_view, 2> kMergedProjections{"qkv_proj", "gate_up_proj"};
inline constexpr std::array<std::string_view, 3> kGpt2Projections{"c_attn", "c_proj", "c_fc"};
/// For latent attention these replace q_proj, k_proj and v_proj. Without `q_lora_rank`, q_proj replaces the
/// first two.
inline constexpr std::array<std::string_view, 4> kLatentProjections{"q_a_proj", "q_b_proj",
                                                                    "kv_a_proj_with_mqa", "kv_b_proj"};
inline constexpr std::string_view kAllProjections = "all-linear";

/// Adapters (Hu et al., LoRA, arXiv 2106.09685): W + alpha / rank B A. Only A and B are trained.
struct LoraOptions {
  std::int64_t rank = 0;             ///< 0: no adapters, all weights are trained
  double alpha = 0;                  ///< default 2 x rank
  std::vector<std::string> targets;  ///< names as above; default kProjections, or kGpt2Projections

  bool on() const { return rank > 0; }
  bool adapts(std::string_view projection) const {
    return on() && std::find(targets.begin(), targets.end(), projection) != targets.end();
  }
  float scale() const { return static_cast<float>(alpha / static_cast<double>(rank)); }

  bool operator==(const LoraOptions&) const = default;
};

/// "LoRA of rank 16, alpha 32 on q_proj, v_proj"; empty without adapters.
std::string to_string(const LoraOptions& lora);

}  // namespace trainerd::core::job
