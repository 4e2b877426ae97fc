#pragma once

#include <string>

#include "core/job/model_options.h"

namespace trainerd::test {

/// Named variants of layers: windows and scaled rotary angles, Gemma 3's layers, Gemma 2's layers with
/// softcaps that take effect at these sizes, sinks with partial rotary embeddings, post-norms alone, OLMo 2's
/// layers, Granite's scales with biases on attention alone, experts, experts of one weight with norms on both
/// sides, experts beside a shared MLP behind a dense layer, gpt-oss's layers. Other names change nothing.
inline void set_layers(const std::string& name, core::job::ModelOptions& m) {
  using namespace core::job;
  if (name == "windows") {
    m.rope_scaling = {.kind = RopeScalingKind::llama3, .factor = 8, .original_max_position = 64};
    m.attention = {.window = 5, .pattern = {"sliding", "sliding", "full"}, .sliding_theta = 100};
  }
  if (name == "gemma") {
    m.attention = {.query_pre_attn_scalar = 20,
                   .window = 5,
                   .pattern = {"sliding", "sliding", "full"},
                   .sliding_theta = 100};
    m.norm_placement = NormPlacement::sandwich;
    m.norm_weight = NormWeight::less_one;
    m.mlp = Mlp::geglu;
    m.qk_norm = m.tie_embeddings = m.scale_embeddings = true;
  }
  if (name == "gemma2") {
    m.attention = {.window = 5, .pattern = {"sliding", "full"}, .softcap = 0.5};
    m.logit_softcap = 2;
    m.norm_placement = NormPlacement::sandwich;
    m.norm_weight = NormWeight::less_one;
    m.mlp = Mlp::geglu;
    m.tie_embeddings = m.scale_embeddings = true;
  }
  if (name == "sinks") {
    m.attention = {.window = 5, .pattern = {"sliding", "full"}, .sinks = true};
    m.rotary_fraction = 0.5;
  }
  if (name == "granite") {
    m.attention = {.scale = 0.25};
    m.embedding_scale = 5, m.residual_scale = 0.3, m.logit_divisor = 3;
    m.attention_bias = m.qkv_bias = true;
  }
  if (name == "experts") m.experts = {.count = 5, .per_token = 2};
  if (name == "experts-six") m.experts = {.count = 6, .per_token = 2};
  if (name == "experts-shared")
    m.experts = {.count = 6,
                 .per_token = 2,
                 .ffn = 24,
                 .shared_ffn = 40,
                 .shared_gate = true,
                 .dense_layers = 1,
                 .score = RouterScore::sigmoid,
                 .bias = true,
                 .scale = 2.5};
  if (name.starts_with("latent")) {
    m.mla = {.q_lora_rank = name == "latent" ? 20 : 0,
             .kv_lora_rank = 12,
             .qk_nope_head_dim = 6,
             .qk_rope_head_dim = 4,
             .v_head_dim = 8};
    settle_mla(m);
  }
  if (name == "latent-experts")
    m.experts = {.count = 6,
                 .per_token = 2,
                 .ffn = 24,
                 .shared_ffn = 40,
                 .dense_layers = 1,
                 .score = RouterScore::sigmoid,
                 .groups = 2,
                 .top_groups = 1,
                 .bias = true,
                 .scale = 2.5};
  if (name == "gpt-oss") {
    m.experts = {.count = 6, .per_token = 2, .logit_bias = true};
    m.mlp = Mlp::swiglu_clamped;
    m.linear_bias = m.attention_bias = m.qkv_bias = m.mlp_bias = true;
    m.attention = {.window = 5, .pattern = {"sliding", "full"}, .sinks = true};
  }
  if (name == "experts-sandwich") {
    m.experts = {.count = 3, .per_token = 1, .normalise = false, .shared_ffn = 24};
    m.norm_placement = NormPlacement::sandwich;
  }
  if (name == "post" || name == "olmo") m.norm_placement = NormPlacement::post;
  if (name == "olmo") {
    m.qk_norm = true;
    m.qk_norm_span = QkNormSpan::all;
  }
}

}  // namespace trainerd::test
