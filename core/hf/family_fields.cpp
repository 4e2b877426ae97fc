#include "core/hf/family_fields.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "core/hf/config_values.h"

namespace trainerd::core::hf {

using job::ModelOptions;

std::vector<Field> joined(std::initializer_list<std::vector<Field>> lists) {
  std::vector<Field> all;
  for (const std::vector<Field>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::vector<Field> llama_fields(double eps, std::vector<Field> ffn) {
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

std::vector<Field> rotary_fields(Field kv_heads, Field head_dim, double eps) {
  return joined({{std::move(kv_heads), std::move(head_dim)}, llama_fields(eps), rope_fields()});
}

std::vector<Field> expert_fields(std::vector<Field> count) {
  return joined({std::move(count),
                 {expert_size_field("num_experts_per_tok", &job::ExpertOptions::per_token),
                  kept_field("output_router_logits"), kept_field("router_aux_loss_coef")}});
}

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

namespace {

constexpr const char* kOneGroup = "a token chooses among all experts";

}  // namespace

std::vector<Field> glm_moe_fields(const Field& kv_heads, const Field& head_dim) {
  return joined({{kv_heads, head_dim},
                 llama_fields(1e-5, expert_width_fields("intermediate_size", "moe_intermediate_size")),
                 rope_fields(0.5),
                 expert_fields({expert_size_field("n_routed_experts", &job::ExpertOptions::count)}),
                 {normalise_field("norm_topk_prob", true),
                  shared_experts_field("n_shared_experts", "moe_intermediate_size"),
                  expert_scale_field("routed_scaling_factor"), dense_layers_field("first_k_dense_replace", 1),
                  flag_field("attention_bias", &ModelOptions::qkv_bias, false),
                  flag_field("use_qk_norm", &ModelOptions::qk_norm, false)},
                 group_fields(1, 1),
                 predictors_fields("num_nextn_predict_layers", "num_mtp_layers")});
}

std::vector<Field> dots_fields(const Field& kv_heads, const Field& head_dim) {
  const std::string routing = kBiasedRouting;
  return joined(
      {{kv_heads, head_dim},
       llama_fields(1e-6, expert_width_fields("intermediate_size", "moe_intermediate_size")),
       rope_fields(),
       expert_fields({expert_size_field("n_routed_experts", &job::ExpertOptions::count)}),
       {normalise_field("norm_topk_prob", false),
        shared_experts_field("n_shared_experts", "moe_intermediate_size"),
        expert_scale_field("routed_scaling_factor"), dense_layers_field("first_k_dense_replace", 0),
        // Of the model's own files.
        fixed_field("scoring_func", {nullptr, "sigmoid", "noaux_tc"}, routing),
        fixed_field("topk_method", {nullptr, "noaux_tc"}, routing),
        fixed_field("moe_layer_freq", {nullptr, 1}, "all layers behind the dense ones have experts"),
        flag_field("attention_bias", &ModelOptions::attention_bias, false)},
       group_fields(1, 1),
       late_window_fields(4096, 62)});
}

std::vector<Field> minimax_fields(const Field& kv_heads) {
  const std::string routing = kBiasedRouting, norms = "queries and keys are normed over all heads",
                    mlp = "every MLP is of experts", groups = kOneGroup, layers = "all layers are full",
                    residual = "the residual stream is not scaled";
  const auto all_full = [](Reading& r, const nlohmann::json* types) {
    if (!absent(types) && (!types->is_array() ||
                           std::any_of(types->begin(), types->end(), [](const auto& t) { return t != 1; })))
      r.problem("attn_type_list", "is " + shown(*types) + ": layers of other types than 1 are not available");
  };
  return joined({{kv_heads, size_field("head_dim", &ModelOptions::head_dim)},
                 llama_fields(1e-6),
                 rotary_dim_fields(5e6),
                 expert_fields({expert_size_field("num_local_experts", &job::ExpertOptions::count)}),
                 {fixed_field("router_jitter_noise", {0.0}, "the router has no noise"),
                  // Of the model's own files.
                  fixed_field("scoring_func", {nullptr, "sigmoid"}, routing),
                  fixed_field("use_routing_bias", {nullptr, true}, routing),
                  fixed_field("use_qk_norm", {nullptr, true}, norms),
                  fixed_field("qk_norm_type", {nullptr, "per_layer"}, norms),
                  fixed_field("use_grouped_topk", {nullptr, true, false}, groups),
                  fixed_field("num_expert_group", {nullptr, 1}, groups),
                  fixed_field("topk_group", {nullptr, 1}, groups),
                  fixed_field("routed_scaling_factor", {nullptr, 1}, routing),
                  fixed_field("shared_intermediate_size", {nullptr, 0}, mlp),
                  kept_field("shared_moe_mode"),
                  kept_field("mlp_intermediate_size"),
                  fixed_field("layernorm_full_attention_beta", {nullptr, 1}, residual),
                  fixed_field("layernorm_linear_attention_beta", {nullptr, 1}, residual),
                  fixed_field("layernorm_mlp_beta", {nullptr, 1}, residual),
                  fixed_field("sliding_window", {nullptr}, layers),
                  fixed_field("attn_window_size", {nullptr}, layers),
                  kept_field("swa_rope_theta"),
                  // Of layers that predict further tokens, which are not available.
                  kept_field("use_mtp"),
                  kept_field("num_mtp_modules"),
                  kept_field("mtp_transformer_layers"),
                  {"attn_type_list", all_full, [](Writing& w) { keep(w, "attn_type_list"); }}}});
}

std::vector<Field> gpt_oss_fields(const Field& kv_heads) {
  std::vector<Field> rope = rope_fields();
  for (Field& field : rope) {
    if (field.name == "rope_theta") field = real_field("rope_theta", &ModelOptions::rope_theta, 150000);
    // Without either transformers takes YaRN's numbers of the published models.
    if (field.name == "rope_scaling")
      field.read = [read = field.read](Reading& r, const nlohmann::json* value) {
        if (absent(value) && absent(find(r.json, "rope_parameters")))
          return r.problem("rope_scaling",
                           "is missing, and rope_parameters too: transformers would scale "
                           "angles by YaRN, by 32 from 4096 positions; write what is meant");
        read(r, value);
      };
    // So a file says that nothing is scaled.
    if (field.name == "rope_parameters")
      field.write = [](Writing& w) {
        if (w.model.rope_scaling.kind == job::RopeScalingKind::none)
          w.out["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", w.model.rope_theta}};
      };
  }
  return joined({{kv_heads, size_field("head_dim", &ModelOptions::head_dim)},
                 llama_fields(1e-5),
                 rope,
                 expert_fields({expert_size_field("num_local_experts", &job::ExpertOptions::count)}),
                 layer_type_fields(128, 2),
                 {flag_field("attention_bias", &ModelOptions::attention_bias, true),
                  fixed_field("swiglu_alpha", {nullptr, 1.702}, "a gate's slope is 1.702"),
                  fixed_field("swiglu_limit", {nullptr, 7.0}, "gates and up projections are limited by 7"),
                  // Older names of other fields.
                  kept_field("experts_per_token"), kept_field("initial_context_length")}});
}

std::vector<Field> seed_fields(const Field& kv_heads) {
  const std::string inputs = "attention_bias", output = "attention_out_bias";
  const auto read = [inputs, output](Reading& r, const nlohmann::json* value) {
    const bool in = read_flag(r, inputs, value, true).value_or(true),
               out = read_flag(r, output, find(r.json, output), false).value_or(false);
    if (out && !in) return r.problem(output, "is not available without " + inputs);
    (out ? r.model.attention_bias : r.model.qkv_bias) = in;
  };
  const auto write = [inputs](Writing& w) { w.out[inputs] = w.model.attention_bias || w.model.qkv_bias; };
  return joined({rotary_fields(kv_heads, size_field("head_dim", &ModelOptions::head_dim)),
                 {{inputs, read, write},
                  {output, [](Reading&, const nlohmann::json*) {},
                   [output](Writing& w) { w.out[output] = w.model.attention_bias; }},
                  flag_field("mlp_bias", &ModelOptions::mlp_bias, false),
                  dropout_field("residual_dropout", "dropout.residual")}});
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

namespace {

/// Weights may be in FP8 with a scale for each block of 128 x 128 elements, as DeepSeek-V3's are; and
/// gpt-oss's experts in MXFP4.
Field quantization_field(const std::string& name) {
  return {name,
          [name](Reading& r, const nlohmann::json* value) {
            if (absent(value)) return;
            const auto says = [&](const char* key, const nlohmann::json& what) {
              const nlohmann::json* found = value->is_object() ? find(*value, key) : nullptr;
              return !absent(found) && *found == what;
            };
            const bool fp4 = says("quant_method", "mxfp4") && r.model.experts.logit_bias;
            if (!fp4 && (!says("quant_method", "fp8") || !says("weight_block_size", {128, 128})))
              return r.problem(
                  name, "is " + shown(*value) +
                            ": weights in fp32, bf16, fp16, of gpt-oss's experts in MXFP4, and in FP8 in "
                            "blocks of 128 x 128 are read: dequantize them first");
            r.notes.push_back(name + (fp4 ? ": experts in MXFP4 are" : ": weights in FP8 are") +
                              " read as bf16, and training does not round them again");
          },
          [](Writing&) {}};
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
      quantization_field("quantization_config"),
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

}  // namespace trainerd::core::hf
