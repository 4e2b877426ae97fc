#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainerd::core::job {

/// The projections of a layer by their names in Hugging Face models, in the order of the layer.
inline constexpr std::array<std::string_view, 7> kProjections{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                              "gate_proj", "up_proj", "down_proj"};
inline constexpr std::string_view kAllProjections = "all-linear";

/// Adapters in place of weights (Hu et al., LoRA, arXiv 2106.09685): W + alpha / rank B A, of which A and B
/// alone are trained.
struct LoraOptions {
  std::int64_t rank = 0;             ///< 0: no adapters, all weights are trained
  double alpha = 0;                  ///< default 2 x rank
  std::vector<std::string> targets;  ///< of kProjections; default all

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
