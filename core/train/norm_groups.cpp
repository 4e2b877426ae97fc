#include "core/train/norm_groups.h"

#include <algorithm>
#include <array>
#include <span>

#include "kernels/base/error.h"

namespace trainerd::core::train {
namespace {

constexpr std::string_view kLayers = "layers.";

bool adapts(const job::LoraOptions& lora, std::span<const std::string_view> projections) {
  return std::any_of(projections.begin(), projections.end(),
                     [&](std::string_view name) { return lora.adapts(name); });
}

/// "attention" for "layers.3.attn_out.weight".
std::string kind_of(std::string_view parameter) {
  if (parameter.starts_with("embed.") || parameter.starts_with("positions.")) return "embedding";
  if (parameter.starts_with("head.")) return "head";
  if (parameter.find("norm.") != std::string_view::npos) return "norm";
  constexpr std::array kOfAttention{".qkv.",     ".attn_out.", ".sinks.", ".qkv_down.",
                                    ".kv_down.", ".q_up.",     ".q.",     ".kv_up."};
  const bool attention = std::any_of(kOfAttention.begin(), kOfAttention.end(), [&](std::string_view name) {
    return parameter.find(name) != std::string_view::npos;
  });
  const std::string half = attention ? "attention" : "mlp";
  return parameter.find(".lora_") != std::string_view::npos ? "adapters." + half : half;
}

/// "layers.3" for "layers.3.attn_out.weight".
std::string layer_of(std::string_view parameter) {
  if (!parameter.starts_with(kLayers))
    return parameter.starts_with("embed.") || parameter.starts_with("positions.") ? "embedding" : "head";
  return std::string(parameter.substr(0, parameter.find('.', kLayers.size())));
}

}  // namespace

NormGroups::NormGroups(const io::GroupNormOptions& options, const job::ModelOptions& model)
    : by_(options.by), adapters_(model.lora.on()) {
  if (options.every == 0) return;
  if (by_ == io::NormGroups::layer) {
    if (!adapters_) names_.emplace_back("embedding");
    for (std::int64_t layer = 0; layer < model.layers; ++layer)
      names_.push_back(std::string(kLayers) + std::to_string(layer));
    if (!adapters_) names_.emplace_back("head");
    return;
  }
  if (!adapters_) {
    names_ = {"embedding", "attention", "mlp", "norm"};
    if (!model.tie_embeddings) names_.emplace_back("head");
    return;
  }
  static constexpr std::array<std::string_view, 7> kOfAttention{"q_proj", "k_proj", "v_proj", "qkv_proj",
                                                                "o_proj", "c_attn", "c_proj"};
  static constexpr std::array<std::string_view, 6> kOfMlp{"gate_proj", "up_proj", "gate_up_proj",
                                                          "down_proj", "c_fc",    "c_proj"};
  if (adapts(model.lora, kOfAttention) || adapts(model.lora, job::kLatentProjections))
    names_.emplace_back("adapters.attention");
  if (adapts(model.lora, kOfMlp)) names_.emplace_back("adapters.mlp");
}

std::int32_t NormGroups::of(std::string_view parameter) const {
  const std::string group = by_ == io::NormGroups::kind ? kind_of(parameter) : layer_of(parameter);
  const auto at = std::find(names_.begin(), names_.end(), group);
  base::check(at != names_.end(), "every trainable parameter has a group");
  return static_cast<std::int32_t>(at - names_.begin());
}

}  // namespace trainerd::core::train
