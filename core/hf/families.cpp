#include "core/hf/families.h"

#include <initializer_list>
#include <utility>

#include "core/hf/config_values.h"

namespace trainerd::core::hf {
namespace {

using job::ModelOptions;

std::vector<Field> joined(std::initializer_list<std::vector<Field>> lists) {
  std::vector<Field> all;
  for (const std::vector<Field>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

/// Fields that Llama shares with similar families, without heads and rotary angles.
std::vector<Field> llama_fields(double eps, std::vector<Field> ffn = {
                                                size_field("intermediate_size", &ModelOptions::ffn)}) {
  return joined(
      {std::move(ffn),
       {size_field("vocab_size", &ModelOptions::vocab), size_field("hidden_size", &ModelOptions::hidden),
        size_field("num_hidden_layers", &ModelOptions::layers),
        size_field("num_attention_heads", &ModelOptions::heads), positions_field("max_position_embeddings"),
        real_field("rms_norm_eps", &ModelOptions::norm_eps, eps),
        flag_field("tie_word_embeddings", &ModelOptions::tie_embeddings, false),
        fixed_field("hidden_act", {"silu", "swish"}, "the MLP's activation is SiLU"),
        dropout_field("attention_dropout")},
       common_fields()});
}

/// Fields common to the families with rotary positions. `kv_heads` and `head_dim` are parameters, because
/// transformers' defaults for them differ.
std::vector<Field> rotary_fields(Field kv_heads, Field head_dim, double eps = 1e-6) {
  return joined({{std::move(kv_heads), std::move(head_dim)}, llama_fields(eps), rope_fields()});
}

/// Fields of models with experts. Losses of the router are the job's.
std::vector<Field> expert_fields(std::vector<Field> count) {
  return joined({std::move(count),
                 {expert_size_field("num_experts_per_tok", &job::ExpertOptions::per_token),
                  kept_field("output_router_logits"), kept_field("router_aux_loss_coef")}});
}

/// Those of Qwen2-MoE and Qwen3-MoE, without head_dim and attention's biases.
std::vector<Field> qwen_moe_fields(const Field& kv_heads) {
  return joined({{kv_heads},
                 llama_fields(1e-6, expert_width_fields("intermediate_size", "moe_intermediate_size")),
                 rope_fields(),
                 expert_fields(renamed_expert_size_field("num_experts", "num_local_experts",
                                                         &job::ExpertOptions::count)),
                 {normalise_field("norm_topk_prob", false)},
                 sparse_layer_fields(),
                 no_window_fields()});
}

/// How many layers behind the model's predict further tokens (multi-token prediction); transformers' default
/// is 1.
std::vector<Field> predictors_fields(const std::string& name, const std::string& newer) {
  const auto read = [name, newer](Reading& r, const nlohmann::json* value) {
    if (absent(value)) value = find(r.json, newer);
    r.further_layers = 1;
    if (absent(value)) return;
    r.further_layers = 0;
    if (*value == 0) return;
    r.further_layers = read_size(r, name, *value).value_or(0);
    r.notes.push_back(name + " is " + shown(*value) +
                      ": layers that predict further tokens are left out, as in transformers' own class");
  };
  return {{name, read, [name](Writing& w) { w.out[name] = 0; }},
          {newer, [](Reading&, const nlohmann::json*) {}, [](Writing&) {}}};
}

std::vector<Field> glm_moe_fields(const Field& kv_heads, const Field& head_dim) {
  const std::string groups = "a token chooses among all experts";
  return joined({{kv_heads, head_dim},
                 llama_fields(1e-5, expert_width_fields("intermediate_size", "moe_intermediate_size")),
                 rope_fields(0.5),
                 expert_fields({expert_size_field("n_routed_experts", &job::ExpertOptions::count)}),
                 {normalise_field("norm_topk_prob", true),
                  shared_experts_field("n_shared_experts", "moe_intermediate_size"),
                  expert_scale_field("routed_scaling_factor"), dense_layers_field("first_k_dense_replace", 1),
                  fixed_field("n_group", {1}, groups), fixed_field("topk_group", {1}, groups),
                  flag_field("attention_bias", &ModelOptions::qkv_bias, false),
                  flag_field("use_qk_norm", &ModelOptions::qk_norm, false)},
                 predictors_fields("num_nextn_predict_layers", "num_mtp_layers")});
}

std::vector<Field> granite_fields(const Field& kv_heads, const Field& head_dim) {
  return joined({rotary_fields(kv_heads, head_dim),
                 {flag_field("attention_bias", &ModelOptions::attention_bias, false),
                  flag_field("mlp_bias", &ModelOptions::mlp_bias, false),
                  real_field("embedding_multiplier", &ModelOptions::embedding_scale, 1.0),
                  real_field("residual_multiplier", &ModelOptions::residual_scale, 1.0),
                  real_field("logits_scaling", &ModelOptions::logit_divisor, 1.0),
                  score_scale_field("attention_multiplier", 1.0)}});
}

/// The head size is hidden / heads.
std::vector<Field> phi3_fields(const Field& kv_heads) {
  return joined(
      {{kv_heads, window_field("sliding_window", 0)},
       llama_fields(1e-5),
       longrope_fields(1.0),
       {fixed_field("attention_bias", {false}, "no linear layer has a bias"),
        // Of Phi-4-mini's file.
        fixed_field("mlp_bias", {nullptr, false}, "no linear layer has a bias"),
        fixed_field("lm_head_bias", {nullptr, false}, "no linear layer has a bias"),
        fixed_field("full_attn_mod", {nullptr, 1}, "all layers attend alike"),
        fixed_field("interpolate_factor", {nullptr, 1}, "rope_scaling alone scales rotary angles"),
        dropout_field("embd_pdrop", "dropout.embedding"), dropout_field("resid_pdrop", "dropout.residual")}});
}

/// Fields that Gemma 2 and 3 share, without rotary angles and the windows' pattern.
std::vector<Field> gemma_fields(double softcap, double logit_softcap) {
  const auto scores = [](ModelOptions& m) -> double& { return m.attention.softcap; };
  const auto logits = [](ModelOptions& m) -> double& { return m.logit_softcap; };
  return joined(
      {{size_field("num_key_value_heads", &ModelOptions::kv_heads),
        size_field("head_dim", &ModelOptions::head_dim), size_field("vocab_size", &ModelOptions::vocab),
        size_field("hidden_size", &ModelOptions::hidden), size_field("intermediate_size", &ModelOptions::ffn),
        size_field("num_hidden_layers", &ModelOptions::layers),
        size_field("num_attention_heads", &ModelOptions::heads), positions_field("max_position_embeddings"),
        real_field("rms_norm_eps", &ModelOptions::norm_eps, 1e-6),
        flag_field("tie_word_embeddings", &ModelOptions::tie_embeddings, true),
        fixed_field("hidden_activation", {"gelu_pytorch_tanh"}, "the MLP's gate is GELU by its tanh form"),
        flag_field("attention_bias", &ModelOptions::attention_bias, false),
        softcap_field("attn_logit_softcapping", scores, softcap),
        softcap_field("final_logit_softcapping", logits, logit_softcap),
        fixed_field("use_bidirectional_attention", {nullptr, false}, "a token sees none that follow"),
        query_scalar_field("query_pre_attn_scalar", 256), dropout_field("attention_dropout"),
        kept_field("cache_implementation")},
       common_fields()});
}

std::vector<Field> stablelm_fields() {
  return joined(
      {{size_field("num_key_value_heads", &ModelOptions::kv_heads),
        size_field("vocab_size", &ModelOptions::vocab), size_field("hidden_size", &ModelOptions::hidden),
        size_field("intermediate_size", &ModelOptions::ffn),
        size_field("num_hidden_layers", &ModelOptions::layers),
        size_field("num_attention_heads", &ModelOptions::heads), positions_field("max_position_embeddings"),
        real_field("layer_norm_eps", &ModelOptions::norm_eps, 1e-5),
        flag_field("tie_word_embeddings", &ModelOptions::tie_embeddings, false),
        flag_field("use_qkv_bias", &ModelOptions::qkv_bias, false),
        fixed_field("hidden_act", {"silu", "swish"}, "the MLP's activation is SiLU"),
        fixed_field("qk_layernorm", {false}, "queries and keys have no LayerNorm of their own"),
        fixed_field("use_parallel_residual", {false}, "the MLP follows attention"),
        dropout_field("hidden_dropout"), dropout_field("attention_dropout")},
       rope_fields(0.25),
       common_fields()});
}

std::vector<Field> gpt2_fields() {
  const std::string scores = "scores are scaled by 1 / sqrt(head size)";
  Field inner = optional_size_field("n_inner", &ModelOptions::ffn);
  return joined({{size_field("vocab_size", &ModelOptions::vocab),
                  size_field("n_embd", &ModelOptions::hidden),
                  inner,
                  size_field("n_layer", &ModelOptions::layers),
                  size_field("n_head", &ModelOptions::heads),
                  size_field("n_positions", &ModelOptions::seq_len),
                  real_field("layer_norm_epsilon", &ModelOptions::norm_eps, 1e-5),
                  flag_field("tie_word_embeddings", &ModelOptions::tie_embeddings, true),
                  fixed_field("activation_function", {"gelu_new", "gelu_pytorch_tanh"},
                              "GELU is computed by its tanh approximation (gelu_new)"),
                  fixed_field("scale_attn_weights", {true}, scores),
                  fixed_field("scale_attn_by_inverse_layer_idx", {false}, scores),
                  fixed_field("reorder_and_upcast_attn", {false}, scores),
                  dropout_field("attn_pdrop"),
                  dropout_field("embd_pdrop", "dropout.embedding"),
                  dropout_field("resid_pdrop", "dropout.residual"),
                  kept_field("n_ctx"),
                  kept_field("summary_type"),
                  kept_field("summary_use_proj"),
                  kept_field("summary_activation"),
                  kept_field("summary_proj_to_labels"),
                  kept_field("summary_first_dropout")},
                 common_fields()});
}

/// Names a program in the directory (Phi-3). Like transformers without trust_remote_code, this program
/// computes the architecture that goes by the name of the file's.
Field own_program_field(const std::string& name) {
  return {name,
          [name](Reading& r, const nlohmann::json* value) {
            if (!absent(value))
              r.notes.push_back(name +
                                " names a program of the directory's own, which is not run: the model is "
                                "taken for one of transformers' own class");
          },
          [](Writing&) {}};
}

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
      {.model_type = "olmoe",
       .architecture = "OlmoeForCausalLM",
       .common = olmoe,
       .tensors = moe_tensors(),
       .fields = joined({rotary_fields(optional_kv_heads, head_dim, 1e-5),
                         expert_fields({expert_size_field("num_experts", &job::ExpertOptions::count)}),
                         {normalise_field("norm_topk_prob", false), attention_bias,
                          fixed_field("clip_qkv", {nullptr}, "queries, keys and values are not clipped")}}),
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

std::vector<Field> common_fields() {
  std::vector<Field> fields{
      token_field("bos_token_id"),
      token_field("eos_token_id"),
      token_field("pad_token_id"),
      fixed_field("is_encoder_decoder", {nullptr, false}, "models are decoders alone"),
      fixed_field("tie_encoder_decoder", {nullptr, false}, "models are decoders alone"),
      fixed_field("add_cross_attention", {nullptr, false}, "models are decoders alone"),
      fixed_field("cross_attention_hidden_size", {nullptr}, "models are decoders alone"),
      fixed_field("pruned_heads", {nullptr, nlohmann::json::object()}, "every layer has all its heads"),
      fixed_field("chunk_size_feed_forward", {nullptr, 0}, "the MLP takes all tokens at once"),
      fixed_field("quantization_config", {nullptr}, "weights are fp32, bf16 or fp16: dequantize them first"),
      fixed_field("use_mrope", {nullptr, false}, "positions are those of text"),
      fixed_field("rope_interleaved", {nullptr, false}, "a head's first half turns with its second"),
      own_program_field("auto_map"),
  };
  for (const char* name : {"_name_or_path",
                           "_commit_hash",
                           "_attn_implementation",
                           "attn_implementation",
                           "_attn_implementation_autoset",
                           "_flash_attn_2_enabled",
                           "bad_words_ids",
                           "begin_suppress_tokens",
                           "decoder_start_token_id",
                           "diversity_penalty",
                           "do_sample",
                           "early_stopping",
                           "encoder_no_repeat_ngram_size",
                           "exponential_decay_length_penalty",
                           "finetuning_task",
                           "forced_bos_token_id",
                           "forced_eos_token_id",
                           "id2label",
                           "initializer_range",
                           "is_llama_config",
                           "is_decoder",
                           "label2id",
                           "length_penalty",
                           "max_length",
                           "max_sequence_length",
                           "min_length",
                           "no_repeat_ngram_size",
                           "num_beam_groups",
                           "num_beams",
                           "num_labels",
                           "num_return_sequences",
                           "output_attentions",
                           "output_hidden_states",
                           "output_past",
                           "num_logits_to_keep",
                           "output_scores",
                           "prefix",
                           "pretraining_tp",
                           "problem_type",
                           "remove_invalid_values",
                           "repetition_penalty",
                           "return_dict",
                           "return_dict_in_generate",
                           "sep_token_id",
                           "suppress_tokens",
                           "task_specific_params",
                           "temperature",
                           "tf_legacy_loss",
                           "tokenizer_class",
                           "top_k",
                           "top_p",
                           "torchscript",
                           "transformers.js_config",
                           "typical_p",
                           "unsloth_fixed",
                           "unsloth_version",
                           "use_bfloat16",
                           "use_cache"})
    fields.push_back(kept_field(name));
  return fields;
}

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
