// Fields of DeepSeek's config.json.

#include "core/hf/config_values.h"
#include "core/hf/family_fields.h"

namespace trainerd::core::hf {

namespace {

/// Sizes of latent attention.
std::vector<Field> mla_fields() {
  using Size = std::int64_t job::MlaOptions::*;
  const auto size = [](const std::string& name, Size option) -> Field {
    return {name,
            [name, option](Reading& r, const nlohmann::json* value) {
              if (absent(value)) return r.problem(name, "is missing");
              if (const auto read = read_size(r, name, *value)) r.model.mla.*option = *read;
            },
            [name, option](Writing& w) { w.out[name] = w.model.mla.*option; }};
  };
  Field queries = size("q_lora_rank", &job::MlaOptions::q_lora_rank);
  queries.read = [read = queries.read](Reading& r, const nlohmann::json* value) {
    if (value == nullptr || !value->is_null()) read(r, value);  // null: queries have no latent
  };
  queries.write = [](Writing& w) {
    w.out["q_lora_rank"] = w.model.mla.q_lora_rank > 0 ? nlohmann::json(w.model.mla.q_lora_rank) : nullptr;
  };
  const std::string key_heads = "num_key_value_heads";
  return {queries,
          size("kv_lora_rank", &job::MlaOptions::kv_lora_rank),
          size("qk_nope_head_dim", &job::MlaOptions::qk_nope_head_dim),
          size("qk_rope_head_dim", &job::MlaOptions::qk_rope_head_dim),
          size("v_head_dim", &job::MlaOptions::v_head_dim),
          {key_heads,
           [key_heads](Reading& r, const nlohmann::json* value) {
             const nlohmann::json* heads = find(r.json, "num_attention_heads");
             if (!absent(value) && !absent(heads) && *value != *heads)
               r.problem(key_heads, "is " + shown(*value) +
                                        ", and with latents there are as many as heads, " + shown(*heads));
           },
           [key_heads](Writing& w) { w.out[key_heads] = w.model.heads; }},
          fixed_field("rope_interleave", {true}, "neighbouring elements turn together"),
          fixed_field("attention_bias", {false}, "no linear layer has a bias"),
          ignored_field("qk_head_dim"),
          ignored_field("head_dim")};
}

/// What DeepSeek-V2 and V3 share; `dense`, `shared`: dense layers and shared experts if the file does not
/// say.
std::vector<Field> deepseek_fields(std::int64_t dense, std::int64_t shared) {
  return joined(
      {mla_fields(),
       llama_fields(1e-6, expert_width_fields("intermediate_size", "moe_intermediate_size")),
       latent_rope_fields(),
       expert_fields({expert_size_field("n_routed_experts", &job::ExpertOptions::count)}),
       {shared_experts_field("n_shared_experts", "moe_intermediate_size", shared),
        dense_layers_field("first_k_dense_replace", dense),
        fixed_field("moe_layer_freq", {nullptr, 1}, "all layers behind the dense ones have experts"),
        kept_field("aux_loss_alpha"), kept_field("seq_aux"), kept_field("ep_size"),
        kept_field("pretraining_tp")}});
}

}  // namespace

std::vector<Field> deepseek_v2_fields() {
  const std::string method = "topk_method", grouped = "group_limited_greedy";
  const auto read = [method, grouped](Reading& r, const nlohmann::json* value) {
    job::ExpertOptions& e = r.model.experts;
    if (absent(value) || *value == "greedy") e.groups = e.top_groups = 1;
    else if (*value != grouped)
      r.problem(method, "is " + shown(*value) + ": greedy and " + grouped + " are available");
  };
  const auto write = [method, grouped](Writing& w) {
    w.out[method] = w.model.experts.groups > 1 ? grouped : "greedy";
  };
  return joined({deepseek_fields(0, 2),
                 group_fields(1, 1),
                 {{method, read, write},
                  expert_scale_field("routed_scaling_factor"),
                  fixed_field("scoring_func", {nullptr, "softmax"}, "the router's scores are a softmax"),
                  fixed_field("norm_topk_prob", {false}, "a token's weights are the router's scores"),
                  fixed_field("mlp_bias", {false}, "no linear layer has a bias")}});
}

std::vector<Field> deepseek_v3_fields() {
  return joined({deepseek_fields(3, 1),
                 group_fields(8, 4),
                 {expert_scale_field("routed_scaling_factor", 2.5), normalise_field("norm_topk_prob", true),
                  fixed_field("scoring_func", {nullptr, "sigmoid"}, kBiasedRouting),
                  fixed_field("topk_method", {nullptr, "noaux_tc"}, kBiasedRouting)},
                 predictors_fields("num_nextn_predict_layers", "num_mtp_layers")});
}

}  // namespace trainerd::core::hf
