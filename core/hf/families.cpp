#include "core/hf/families.h"

#include <initializer_list>
#include <utility>

#include "core/hf/family_fields.h"

namespace trainerd::core::hf {
namespace {

using job::ModelOptions;

std::vector<Family> make_families() {
  const ModelOptions rotary;  // RMSNorm, rotary positions, SwiGLU, no biases
  ModelOptions qwen2 = rotary, qwen3 = rotary, gpt2 = rotary;
  qwen2.qkv_bias = true;
  qwen3.qk_norm = true;
  ModelOptions qwen2_moe = rotary;
  qwen2_moe.experts.shared_gate = true;
  ModelOptions glm_moe = rotary;
  glm_moe.experts.score = job::RouterScore::sigmoid;
  glm_moe.experts.bias = true;
  ModelOptions olmo2 = rotary;
  olmo2.norm_placement = job::NormPlacement::post;
  olmo2.qk_norm = true;
  olmo2.qk_norm_span = job::QkNormSpan::all;
  ModelOptions olmoe = rotary;
  olmoe.qk_norm = true;
  olmoe.qk_norm_span = job::QkNormSpan::all;
  ModelOptions dots = glm_moe;
  dots.qk_norm = true;
  ModelOptions minimax = dots;
  minimax.qk_norm_span = job::QkNormSpan::all;
  ModelOptions deepseek_v2 = rotary;
  deepseek_v2.experts.normalise = false;
  ModelOptions gpt_oss = rotary;
  gpt_oss.mlp = job::Mlp::swiglu_clamped;
  gpt_oss.mlp_bias = true;
  gpt_oss.experts.logit_bias = true;
  gpt_oss.attention.sinks = true;
  ModelOptions gemma2 = rotary;
  gemma2.norm_placement = job::NormPlacement::sandwich;
  gemma2.norm_weight = job::NormWeight::less_one;
  gemma2.mlp = job::Mlp::geglu;
  gemma2.scale_embeddings = true;
  ModelOptions gemma3 = gemma2;
  gemma3.qk_norm = true;
  ModelOptions stablelm = rotary;
  stablelm.norm = job::Norm::layer;
  gpt2.norm = job::Norm::layer;
  gpt2.positions = job::Positions::learned;
  gpt2.mlp = job::Mlp::gelu;
  gpt2.linear_bias = true;
  const std::vector<std::string> rotary_tables{".rotary_emb.inv_freq"};
  const Field kv_heads = size_field("num_key_value_heads", &ModelOptions::kv_heads);
  const Field optional_kv_heads = optional_size_field("num_key_value_heads", &ModelOptions::kv_heads);
  const Field head_dim = head_dim_field("head_dim");
  const Field attention_bias = flag_field("attention_bias", &ModelOptions::attention_bias, false),
              mlp_bias = flag_field("mlp_bias", &ModelOptions::mlp_bias, false);
  return {
      {.model_type = "llama",
       .architecture = "LlamaForCausalLM",
       .common = rotary,
       .tensors = llama_tensors(),
       .fields = joined({rotary_fields(optional_kv_heads, head_dim), {attention_bias, mlp_bias}}),
       .tables = rotary_tables},
      {.model_type = "mistral",
       .architecture = "MistralForCausalLM",
       .common = rotary,
       .tensors = llama_tensors(),
       .fields = joined({rotary_fields(kv_heads, head_dim), {window_field("sliding_window", 4096)}}),
       .tables = rotary_tables},
      {.model_type = "qwen2",
       .architecture = "Qwen2ForCausalLM",
       .common = qwen2,
       .tensors = llama_tensors(),
       .fields = joined({rotary_fields(kv_heads, head_dim), window_fields()}),
       .tables = rotary_tables},
      {.model_type = "qwen3",
       .architecture = "Qwen3ForCausalLM",
       .common = qwen3,
       .tensors = llama_tensors(),
       .fields = joined({rotary_fields(kv_heads, size_field("head_dim", &ModelOptions::head_dim)),
                         window_fields(),
                         {attention_bias}}),
       .tables = rotary_tables},
      {.model_type = "olmo2",
       .architecture = "Olmo2ForCausalLM",
       .common = olmo2,
       .tensors = gemma_tensors(),
       .fields = joined({rotary_fields(optional_kv_heads, head_dim, 1e-5), {attention_bias}}),
       .tables = rotary_tables},
      {.model_type = "olmo3",
       .architecture = "Olmo3ForCausalLM",
       .common = olmo2,
       .tensors = gemma_tensors(),
       .fields = joined({{optional_kv_heads, head_dim},
                         llama_fields(1e-5),
                         full_rope_fields(5e5),
                         layer_type_fields(4096, 4),
                         {attention_bias}}),
       .tables = rotary_tables},
      {.model_type = "seed_oss",
       .architecture = "SeedOssForCausalLM",
       .common = rotary,
       .tensors = llama_tensors(),
       .fields = seed_fields(kv_heads),
       .tables = rotary_tables},
      {.model_type = "mixtral",
       .architecture = "MixtralForCausalLM",
       .common = rotary,
       .tensors = mixtral_tensors(),
       .fields = joined({rotary_fields(kv_heads, head_dim, 1e-5),
                         expert_fields({expert_size_field("num_local_experts", &job::ExpertOptions::count)}),
                         {window_field("sliding_window", 0),
                          fixed_field("router_jitter_noise", {0.0}, "the router has no noise")}}),
       .tables = rotary_tables},
      {.model_type = "qwen3_moe",
       .architecture = "Qwen3MoeForCausalLM",
       .common = qwen3,
       .tensors = moe_tensors(),
       .fields = joined(
           {qwen_moe_fields(kv_heads), {size_field("head_dim", &ModelOptions::head_dim), attention_bias}}),
       .tables = rotary_tables},
      {.model_type = "qwen2_moe",
       .architecture = "Qwen2MoeForCausalLM",
       .common = qwen2_moe,
       .tensors = qwen2_moe_tensors(),
       .fields = joined(
           {qwen_moe_fields(kv_heads),
            {head_dim, expert_size_field("shared_expert_intermediate_size", &job::ExpertOptions::shared_ffn),
             flag_field("qkv_bias", &ModelOptions::qkv_bias, true)}}),
       .tables = rotary_tables},
      {.model_type = "glm4_moe",
       .architecture = "Glm4MoeForCausalLM",
       .common = glm_moe,
       .tensors = glm_moe_tensors(),
       .fields = glm_moe_fields(kv_heads, head_dim),
       .tables = rotary_tables},
      {.model_type = "dots1",
       .architecture = "Dots1ForCausalLM",
       .common = dots,
       .tensors = glm_moe_tensors(),
       .fields = dots_fields(kv_heads, head_dim),
       .tables = rotary_tables},
      {.model_type = "deepseek_v3",
       .architecture = "DeepseekV3ForCausalLM",
       .common = glm_moe,
       .tensors = deepseek_tensors(),
       .fields = deepseek_v3_fields(),
       .tables = rotary_tables},
      {.model_type = "deepseek_v2",
       .architecture = "DeepseekV2ForCausalLM",
       .common = deepseek_v2,
       .tensors = deepseek_tensors(),
       .fields = deepseek_v2_fields(),
       .tables = rotary_tables},
      {.model_type = "minimax_m2",
       .architecture = "MiniMaxM2ForCausalLM",
       .common = minimax,
       .tensors = minimax_tensors(),
       .fields = minimax_fields(kv_heads),
       .tables = rotary_tables},
      {.model_type = "olmoe",
       .architecture = "OlmoeForCausalLM",
       .common = olmoe,
       .tensors = moe_tensors(),
       .fields = joined({rotary_fields(optional_kv_heads, head_dim, 1e-5),
                         expert_fields({expert_size_field("num_experts", &job::ExpertOptions::count)}),
                         {normalise_field("norm_topk_prob", false), attention_bias,
                          fixed_field("clip_qkv", {nullptr}, "queries, keys and values are not clipped")}}),
       .tables = rotary_tables},
      {.model_type = "gpt_oss",
       .architecture = "GptOssForCausalLM",
       .common = gpt_oss,
       .tensors = gpt_oss_tensors(),
       .fields = gpt_oss_fields(kv_heads),
       .tables = rotary_tables},
      {.model_type = "gemma2",
       .architecture = "Gemma2ForCausalLM",
       .common = gemma2,
       .tensors = gemma_tensors(),
       // In files of older versions every second layer is full, but no field states it. transformers uses
       // `hidden_activation` and ignores `hidden_act`.
       .fields = joined(
           {gemma_fields(50, 30), rope_fields(), layer_type_fields(4096, 2), {kept_field("hidden_act")}}),
       .tables = rotary_tables},
      {.model_type = "gemma3_text",
       .architecture = "Gemma3ForCausalLM",
       .common = gemma3,
       .tensors = gemma_tensors(),
       .fields = joined({gemma_fields(0, 0), two_rope_fields(1e6, 1e4), layer_type_fields(4096, 6)}),
       .tables = rotary_tables},
      {.model_type = "stablelm",
       .architecture = "StableLmForCausalLM",
       .common = stablelm,
       .tensors = llama_tensors(),
       .fields = stablelm_fields(),
       .tables = rotary_tables},
      {.model_type = "granite",
       .architecture = "GraniteForCausalLM",
       .common = rotary,
       .tensors = llama_tensors(),
       .fields = granite_fields(optional_kv_heads, head_dim),
       .tables = rotary_tables},
      {.model_type = "phi3",
       .architecture = "Phi3ForCausalLM",
       .common = rotary,
       .tensors = phi3_tensors(),
       .fields = phi3_fields(optional_kv_heads),
       .tables = rotary_tables},
      {.model_type = "gpt2",
       .architecture = "GPT2LMHeadModel",
       .common = gpt2,
       .tensors = gpt2_tensors(),
       .fields = gpt2_fields(),
       .tables = {".attn.bias", ".attn.masked_bias"}},
  };
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> all = make_families();
  return all;
}

const Family* find_family(const std::string& model_type) {
  for (const Family& family : families())
    if (family.model_type == model_type) return &family;
  return nullptr;
}

}  // namespace trainerd::core::hf
