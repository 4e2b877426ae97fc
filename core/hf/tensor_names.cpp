#include "core/hf/tensor_names.h"

#include <array>
#include <cctype>
#include <utility>

#include "core/model/parameters.h"
#include "kernels/base/error.h"

namespace trainerd::core::hf {
namespace {

constexpr const char* kLayers = "layers.";

/// "layers.12.qkv.weight" as "layers.N.qkv", "12" and ".weight".
struct NameParts {
  std::string pattern, layer, suffix;
};
NameParts parts_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  NameParts parts{name.substr(0, dot), "", name.substr(dot)};
  if (!parts.pattern.starts_with(kLayers)) return parts;
  const std::size_t begin = std::string(kLayers).size(), end = parts.pattern.find('.', begin);
  parts.layer = parts.pattern.substr(begin, end - begin);
  parts.pattern.replace(begin, end - begin, "N");
  return parts;
}

std::string in_layer(std::string pattern, const std::string& layer) {
  if (const std::size_t at = pattern.find(".N."); at != std::string::npos) pattern.replace(at + 1, 1, layer);
  return pattern;
}

/// All parameters, as if on one rank.
std::vector<model::ParamInfo> parameters_of(const job::ModelOptions& options) {
  const std::vector<parallel::ChunkSpan> whole{
      {.first_layer = 0, .layers = options.layers, .embedding = true, .head = true}};
  return model::declare_parameters(options, whole, 1, false, model::kLogicalVocab).infos;
}

const TensorRule& rule_for(std::span<const TensorRule> rules, const std::string& pattern) {
  for (const TensorRule& rule : rules)
    if (pattern == rule.ours) return rule;
  base::check(false, "every parameter of a family's models has a rule");
  return rules.front();
}

}  // namespace

std::span<const TensorRule> llama_tensors() {
  static const std::array<TensorRule, 11> rules{{
      {"embed", {"model.embed_tokens"}},
      {"layers.N.attn_norm", {"model.layers.N.input_layernorm"}},
      {"layers.N.qkv",
       {"model.layers.N.self_attn.q_proj", "model.layers.N.self_attn.k_proj",
        "model.layers.N.self_attn.v_proj"}},
      {"layers.N.q_norm", {"model.layers.N.self_attn.q_norm"}},
      {"layers.N.k_norm", {"model.layers.N.self_attn.k_norm"}},
      {"layers.N.attn_out", {"model.layers.N.self_attn.o_proj"}},
      {"layers.N.mlp_norm", {"model.layers.N.post_attention_layernorm"}},
      {"layers.N.gate_up", {"model.layers.N.mlp.gate_proj", "model.layers.N.mlp.up_proj"}},
      {"layers.N.down", {"model.layers.N.mlp.down_proj"}},
      {"final_norm", {"model.norm"}},
      {"head", {"lm_head"}},
  }};
  return rules;
}

std::span<const TensorRule> gemma_tensors() {
  static const std::array<TensorRule, 13> rules{{
      {"embed", {"model.embed_tokens"}},
      {"layers.N.attn_norm", {"model.layers.N.input_layernorm"}},
      {"layers.N.qkv",
       {"model.layers.N.self_attn.q_proj", "model.layers.N.self_attn.k_proj",
        "model.layers.N.self_attn.v_proj"}},
      {"layers.N.q_norm", {"model.layers.N.self_attn.q_norm"}},
      {"layers.N.k_norm", {"model.layers.N.self_attn.k_norm"}},
      {"layers.N.attn_out", {"model.layers.N.self_attn.o_proj"}},
      {"layers.N.attn_post_norm", {"model.layers.N.post_attention_layernorm"}},
      {"layers.N.mlp_norm", {"model.layers.N.pre_feedforward_layernorm"}},
      {"layers.N.gate_up", {"model.layers.N.mlp.gate_proj", "model.layers.N.mlp.up_proj"}},
      {"layers.N.down", {"model.layers.N.mlp.down_proj"}},
      {"layers.N.mlp_post_norm", {"model.layers.N.post_feedforward_layernorm"}},
      {"final_norm", {"model.norm"}},
      {"head", {"lm_head"}},
  }};
  return rules;
}

std::span<const TensorRule> phi3_tensors() {
  static const std::array<TensorRule, 9> rules{{
      {"embed", {"model.embed_tokens"}},
      {"layers.N.attn_norm", {"model.layers.N.input_layernorm"}},
      {"layers.N.qkv", {"model.layers.N.self_attn.qkv_proj"}},
      {"layers.N.attn_out", {"model.layers.N.self_attn.o_proj"}},
      {"layers.N.mlp_norm", {"model.layers.N.post_attention_layernorm"}},
      {"layers.N.gate_up", {"model.layers.N.mlp.gate_up_proj"}},
      {"layers.N.down", {"model.layers.N.mlp.down_proj"}},
      {"final_norm", {"model.norm"}},
      {"head", {"lm_head"}},
  }};
  return rules;
}

std::span<const TensorRule> gpt2_tensors() {
  static const std::array<TensorRule, 10> rules{{
      {"embed", {"transformer.wte"}},
      {"positions", {"transformer.wpe"}},
      {"layers.N.attn_norm", {"transformer.h.N.ln_1"}},
      {"layers.N.qkv", {"transformer.h.N.attn.c_attn"}, true},
      {"layers.N.attn_out", {"transformer.h.N.attn.c_proj"}, true},
      {"layers.N.mlp_norm", {"transformer.h.N.ln_2"}},
      {"layers.N.up", {"transformer.h.N.mlp.c_fc"}, true},
      {"layers.N.down", {"transformer.h.N.mlp.c_proj"}, true},
      {"final_norm", {"transformer.ln_f"}},
      {"head", {"lm_head"}},
  }};
  return rules;
}

namespace {

/// The rules of Llama's tensors, with these for the router and the experts' matrices.
std::vector<TensorRule> with_experts(const char* router, std::vector<const char*> gate_up, const char* down) {
  const std::span<const TensorRule> llama = llama_tensors();
  std::vector<TensorRule> rules(llama.begin(), llama.end());
  rules.push_back({"layers.N.router", {router}});
  rules.push_back({"layers.N.experts.gate_up", std::move(gate_up)});
  rules.push_back({"layers.N.experts.down", {down}});
  return rules;
}

}  // namespace

std::span<const TensorRule> mixtral_tensors() {
  static const std::vector<TensorRule> rules = with_experts(
      "model.layers.N.block_sparse_moe.gate",
      {"model.layers.N.block_sparse_moe.experts.X.w1", "model.layers.N.block_sparse_moe.experts.X.w3"},
      "model.layers.N.block_sparse_moe.experts.X.w2");
  return rules;
}

std::span<const TensorRule> moe_tensors() {
  static const std::vector<TensorRule> rules =
      with_experts("model.layers.N.mlp.gate",
                   {"model.layers.N.mlp.experts.X.gate_proj", "model.layers.N.mlp.experts.X.up_proj"},
                   "model.layers.N.mlp.experts.X.down_proj");
  return rules;
}

namespace {

/// The rules of `moe_tensors`, with these for the shared MLP, and one more.
std::vector<TensorRule> with_shared(std::vector<const char*> gate_up, const char* down, TensorRule more) {
  std::vector<TensorRule> rules(moe_tensors().begin(), moe_tensors().end());
  rules.push_back({"layers.N.shared.gate_up", std::move(gate_up)});
  rules.push_back({"layers.N.shared.down", {down}});
  rules.push_back(std::move(more));
  return rules;
}

}  // namespace

std::span<const TensorRule> qwen2_moe_tensors() {
  static const std::vector<TensorRule> rules =
      with_shared({"model.layers.N.mlp.shared_expert.gate_proj", "model.layers.N.mlp.shared_expert.up_proj"},
                  "model.layers.N.mlp.shared_expert.down_proj",
                  {"layers.N.shared_gate", {"model.layers.N.mlp.shared_expert_gate"}});
  return rules;
}

std::span<const TensorRule> glm_moe_tensors() {
  static const std::vector<TensorRule> rules = with_shared(
      {"model.layers.N.mlp.shared_experts.gate_proj", "model.layers.N.mlp.shared_experts.up_proj"},
      "model.layers.N.mlp.shared_experts.down_proj",
      {.ours = "layers.N.router_bias",
       .theirs = {"model.layers.N.mlp.gate.e_score_correction_bias"},
       .bare = true,
       .exact = true});
  return rules;
}

std::span<const TensorRule> deepseek_tensors() {
  static const std::vector<TensorRule> rules = [] {
    std::vector<TensorRule> all(glm_moe_tensors().begin(), glm_moe_tensors().end());
    const std::array<TensorRule, 7> latent{{
        {"layers.N.qkv_down",
         {"model.layers.N.self_attn.q_a_proj", "model.layers.N.self_attn.kv_a_proj_with_mqa"}},
        {"layers.N.q_latent_norm", {"model.layers.N.self_attn.q_a_layernorm"}},
        {"layers.N.q_up", {"model.layers.N.self_attn.q_b_proj"}},
        {"layers.N.kv_down", {"model.layers.N.self_attn.kv_a_proj_with_mqa"}},
        {"layers.N.q", {"model.layers.N.self_attn.q_proj"}},
        {"layers.N.kv_latent_norm", {"model.layers.N.self_attn.kv_a_layernorm"}},
        {"layers.N.kv_up", {"model.layers.N.self_attn.kv_b_proj"}},
    }};
    all.insert(all.end(), latent.begin(), latent.end());
    return all;
  }();
  return rules;
}

std::span<const TensorRule> minimax_tensors() {
  static const std::vector<TensorRule> rules = [] {
    std::vector<TensorRule> all(mixtral_tensors().begin(), mixtral_tensors().end());
    all.push_back({.ours = "layers.N.router_bias",
                   .theirs = {"model.layers.N.block_sparse_moe.e_score_correction_bias"},
                   .bare = true,
                   .exact = true});
    return all;
  }();
  return rules;
}

std::span<const TensorRule> gpt_oss_tensors() {
  static const std::vector<TensorRule> rules = [] {
    std::vector<TensorRule> all(llama_tensors().begin(), llama_tensors().end());
    all.push_back({.ours = "layers.N.sinks", .theirs = {"model.layers.N.self_attn.sinks"}, .bare = true});
    all.push_back({.ours = "layers.N.router", .theirs = {"model.layers.N.mlp.router"}});
    all.push_back({.ours = "layers.N.experts.gate_up",
                   .theirs = {"model.layers.N.mlp.experts.gate_up_proj"},
                   .transposed = true,
                   .stacked = true,
                   .alternate = true});
    all.push_back({.ours = "layers.N.experts.down",
                   .theirs = {"model.layers.N.mlp.experts.down_proj"},
                   .transposed = true,
                   .stacked = true});
    return all;
  }();
  return rules;
}

std::vector<std::int64_t> MappedTensor::their_shape(const TheirTensor& part) const {
  if (stacked > 0 && shape.size() == 1) return {stacked, expert_rows()};
  if (stacked > 0) return {stacked, columns(), expert_rows()};
  if (shape.size() == 1) return {part.rows};
  if (transposed) return {columns(), part.rows};
  return {part.rows, columns()};
}

std::vector<io::TensorSlice> model_tensors(const job::ModelOptions& model) {
  std::vector<io::TensorSlice> tensors;
  for (const model::ParamInfo& info : parameters_of(model)) {
    const kernels::Shape& logical = info.shard.logical;
    const std::vector<std::int64_t> shape(logical.sizes.begin(), logical.sizes.begin() + logical.ndim);
    tensors.push_back({.name = info.name,
                       .dtype = kernels::DType::f32,
                       .logical_shape = shape,
                       .begin = std::vector<std::int64_t>(shape.size(), 0),
                       .shape = shape});
  }
  return tensors;
}

std::set<std::string> expert_biases(const job::ModelOptions& model) {
  std::set<std::string> names;
  for (const model::ParamInfo& info : parameters_of(model))
    if (info.biases_of_layer >= 0) names.insert(info.name);
  return names;
}

std::vector<MappedTensor> map_tensors(std::span<const TensorRule> rules, const job::ModelOptions& model) {
  std::vector<MappedTensor> tensors;
  for (const model::ParamInfo& info : parameters_of(model)) {
    const NameParts name = parts_of(info.name);
    const TensorRule& rule = rule_for(rules, name.pattern);
    const kernels::Shape& logical = info.shard.logical;
    MappedTensor tensor{.name = info.name,
                        .shape = {logical.sizes.begin(), logical.sizes.begin() + logical.ndim},
                        .parts = {},
                        .transposed = rule.transposed && logical.ndim == 2,
                        .exact = rule.exact,
                        .stacked = rule.stacked ? model.experts.count : 0,
                        .alternate = rule.alternate};
    // Experts have equal parts. Otherwise the segments that tensor parallelism splits are their tensors.
    const auto theirs = static_cast<std::int64_t>(rule.theirs.size());
    const bool of_experts = std::string(rule.theirs.front()).find(".X.") != std::string::npos;
    std::int64_t row = 0;
    for (std::int64_t i = 0; i < theirs * (of_experts ? model.experts.count : 1); ++i) {
      std::string their = in_layer(rule.theirs[static_cast<std::size_t>(i % theirs)], name.layer);
      std::int64_t rows =
          theirs > 1 ? info.shard.segments.at(static_cast<std::size_t>(i)).size : tensor.shape[0];
      if (of_experts) {
        their.replace(their.find(".X.") + 1, 1, std::to_string(i / theirs));
        rows = tensor.shape[0] / (theirs * model.experts.count);
      }
      if (rule.stacked) their += name.suffix == ".bias" ? "_bias" : "";
      else if (!rule.bare) their += name.suffix;
      tensor.parts.push_back({their, row, rows});
      row += rows;
    }
    base::check(row == tensor.shape[0], "their tensors are all rows of ours");
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace trainerd::core::hf
