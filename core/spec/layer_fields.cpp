#include "core/spec/field_table.h"
#include "kernels/ops/experts.h"

namespace trainerd::core::spec {
namespace {

constexpr double kMaxPositions = 2147483647;                 // int32, like token ids
constexpr double kMostFfn = 1 << 22, kMostLayers = 1 << 10;  // as of model.ffn and model.layers
constexpr double kMostExperts = static_cast<double>(kernels::kMostExperts);
constexpr double kMaxSoftcap = 1e6;  // a larger value caps no score distinguishable in fp32

void add_rope_scaling(FieldTable& t, job::ModelOptions& m) {
  using Kind = job::RopeScalingKind;
  job::RopeScaling& s = m.rope_scaling;
  t.choice(
       "model.rope_scaling.kind", s.kind,
       {{"none", Kind::none},
        {"linear", Kind::linear},
        {"llama3", Kind::llama3},
        {"yarn", Kind::yarn},
        {"longrope", Kind::longrope}},
       "how rotary angles of sequences longer than the first ones are made; linear: all divided by `factor`; "
       "llama3 (Llama 3.1), yarn: slow ones divided, quick ones kept; longrope (Phi-3): each by its own "
       "factor")
      .idle_if(m.positions != job::Positions::rope, "positions: learned has no rotary angles");
  const auto of = [&](Field& field, bool used, const char* kinds) -> Field& {
    return field.idle_if(!used, std::string("only kind: ") + kinds + " has it");
  };
  const bool llama3 = s.kind == Kind::llama3, yarn = s.kind == Kind::yarn,
             longrope = s.kind == Kind::longrope;
  of(t.add("model.rope_scaling.factor", &s.factor, "how many times longer; above 1").at_least(1),
     s.kind != Kind::none, "linear, llama3, yarn and longrope");
  of(t.add("model.rope_scaling.original_max_position", &s.original_max_position,
           "tokens of the sequences that the model began with")
         .between(0, kMaxPositions)
         .or_else("required with llama3, yarn and longrope"),
     llama3 || yarn || longrope, "llama3, yarn and longrope");
  of(t.add("model.rope_scaling.low_freq_factor", &s.low_freq_factor,
           "llama3: waves longer than `original_max_position` / this are divided")
         .above(0),
     llama3, "llama3");
  of(t.add("model.rope_scaling.high_freq_factor", &s.high_freq_factor,
           "llama3: waves shorter than `original_max_position` / this are kept")
         .above(0),
     llama3, "llama3");
  of(t.add("model.rope_scaling.beta_fast", &s.beta_fast,
           "yarn: pairs that turn more often over `original_max_position` are kept")
         .above(0),
     yarn, "yarn");
  of(t.add("model.rope_scaling.beta_slow", &s.beta_slow, "yarn: pairs that turn less often are divided")
         .above(0),
     yarn, "yarn");
  of(t.add("model.rope_scaling.attention_factor", &s.attention_factor,
           "yarn, longrope: multiplies cosines and sines; 0: 0.1 ln(`factor`) + 1 with yarn, "
           "sqrt(1 + ln(`factor`) / ln(`original_max_position`)) with longrope")
         .at_least(0),
     yarn || longrope, "yarn and longrope");
  of(t.add("model.rope_scaling.truncate", &s.truncate, "yarn: blend between whole pairs"), yarn, "yarn");
  of(t.add("model.rope_scaling.short_factor", &s.short_factor,
           "longrope: each pair's angles are divided by its factor where `model.seq_len` is up to "
           "`original_max_position`")
         .above(0),
     longrope, "longrope");
  of(t.add("model.rope_scaling.long_factor", &s.long_factor, "longrope: the same of a longer `model.seq_len`")
         .above(0),
     longrope, "longrope");
}

}  // namespace

void add_biases(FieldTable& t, job::ModelOptions& m) {
  const KeySays all{"model.bias", Says::word, "true"},
      of_attention{"model.attention_bias", Says::word, "true"}, of_mlp{"model.mlp_bias", Says::word, "true"};
  const char* const contradicts_all = "false contradicts bias: true, which puts a bias on every linear layer";
  t.add("model.bias", &m.linear_bias, "biases on every linear layer (GPT-2); implies the following three")
      .contradicts("false", {of_attention, of_mlp},
                   "false contradicts attention_bias: true and mlp_bias: true, which are every bias");
  t.add("model.attention_bias", &m.attention_bias,
        "biases on every projection of attention, the output's included (`attention_bias` of Hugging Face's "
        "Llama); implies `qkv_bias`")
      .contradicts("false", {all}, contradicts_all);
  t.add("model.qkv_bias", &m.qkv_bias, "biases on the query, key and value projections (Qwen2.5)")
      .contradicts("false", {all}, contradicts_all)
      .contradicts("false", {of_attention},
                   "false contradicts attention_bias: true, which is of queries, keys and values too");
  t.add("model.mlp_bias", &m.mlp_bias, "biases on the linear layers of the MLP")
      .contradicts("false", {all}, contradicts_all);
}

void add_layers(FieldTable& t, job::ModelOptions& m) {
  using Placement = job::NormPlacement;
  t.choice("model.norm_placement", m.norm_placement,
           {{"pre", Placement::pre}, {"post", Placement::post}, {"sandwich", Placement::sandwich}},
           "norms before attention and MLP, after them, where what they add is normed (OLMo 2), or both "
           "(Gemma 2 and 3)");
  t.choice("model.norm_weight", m.norm_weight,
           {{"factor", job::NormWeight::factor}, {"less_one", job::NormWeight::less_one}},
           "what the weights of RMS norms are: the factors, or the factors less 1 (Gemma)")
      .idle_if(m.norm != job::Norm::rms, "only norm: rms has it");
  t.choice("model.qk_norm_span", m.qk_norm_span,
           {{"head", job::QkNormSpan::head}, {"all", job::QkNormSpan::all}},
           "what `qk_norm` goes over: each head by itself, or all query heads together, and all key heads "
           "(OLMo 2)")
      .idle_if(!m.qk_norm, "there is no qk_norm");
  t.add("model.scale_embeddings", &m.scale_embeddings,
        "embeddings are multiplied by sqrt(`hidden`), rounded to the activations' format (Gemma)")
      .idle_if(m.positions == job::Positions::learned, "positions: learned has none");
  t.add("model.embedding_scale", &m.embedding_scale,
        "embeddings are multiplied by this (Granite's `embedding_multiplier`)")
      .above(0)
      .not_with("model.scale_embeddings", "is given beside scale_embeddings: true: leave one of them out")
      .idle_if(m.positions == job::Positions::learned, "positions: learned has none");
  t.add("model.residual_scale", &m.residual_scale,
        "what attention and MLP add to the residual stream is multiplied by this (Granite's "
        "`residual_multiplier`)")
      .above(0);
  t.add("model.logit_divisor", &m.logit_divisor, "logits are divided by this (Granite's `logits_scaling`)")
      .above(0);
  t.add("model.logit_softcap", &m.logit_softcap,
        "logits x become c tanh(x / c), c being this (Gemma 2: 30); 0: they stay")
      .between(0, kMaxSoftcap);
  t.add("model.rotary_fraction", &m.rotary_fraction,
        "which part of each head is rotated, its first elements (StableLM: 0.25); the rest has no positions")
      .above(0, 1)
      .idle_if(m.mla.on() || m.positions != job::Positions::rope,
               m.mla.on() ? "mla.qk_rope_head_dim says it" : "positions: learned has no rotary angles");
  add_rope_scaling(t, m);
  job::AttentionOptions& a = m.attention;
  const std::string no_window = "no layer slides without attention.window";
  t.add("model.attention.query_pre_attn_scalar", &a.query_pre_attn_scalar,
        "scores are divided by its root (Gemma)")
      .at_least(0)
      .or_else("`head_dim`");
  t.add("model.attention.scale", &a.scale, "scores are multiplied by this (Granite's `attention_multiplier`)")
      .at_least(0)
      .or_else("1 / sqrt(`query_pre_attn_scalar`)")
      .not_with("model.attention.query_pre_attn_scalar",
                "is given beside query_pre_attn_scalar: leave one of them out");
  t.add("model.attention.window", &a.window,
        "keys that a query of a sliding layer sees, its own included; 0: every layer sees all")
      .between(0, kMaxPositions);
  t.add("model.attention.pattern", &a.pattern,
        "`sliding` or `full` for each layer, repeated over the layers: `[sliding, sliding, full]`; a list as "
        "long as "
        "the model names each")
      .or_else("all slide where there is a `window`")
      .idle_if(a.window == 0, no_window);
  t.add("model.attention.sliding_theta", &a.sliding_theta,
        "base of the rotary angles of sliding layers, which `rope_scaling` then leaves alone (Gemma 3); 0: "
        "as the others")
      .at_least(0)
      .idle_if(a.window == 0 || m.positions != job::Positions::rope,
               a.window == 0 ? no_window : "positions: learned has no rotary angles");
  t.add("model.attention.sinks", &a.sinks,
        "a learned logit for each head joins the softmax of its scores and carries no value (gpt-oss)");
  t.add("model.attention.softcap", &a.softcap,
        "scaled scores s become c tanh(s / c), c being this (Gemma 2: 50); 0: they stay. On GPUs own kernels "
        "compute it, not cuDNN")
      .between(0, kMaxSoftcap);
  job::ExpertOptions& e = m.experts;
  const std::string dense = "the MLPs are dense without experts.count";
  t.add("model.experts.count", &e.count,
        "MLPs in each layer, of which a router chooses `per_token` for each token (mixture of experts); no "
        "token "
        "is dropped; 0: one dense MLP of width `ffn`")
      .between(0, kMostExperts);
  t.add("model.experts.per_token", &e.per_token,
        "experts that each token passes through; required with `count`")
      .between(0, kMostExperts)
      .idle_if(!e.on(), dense);
  t.add("model.experts.normalise", &e.normalise,
        "the weights of a token's experts sum to 1 (Mixtral, Qwen3-MoE); false: they are the router's "
        "scores (OLMoE)")
      .idle_if(!e.on(), dense);
  t.add("model.experts.ffn", &e.ffn,
        "width of each expert, where it is not that of the dense layers, `model.ffn`")
      .between(0, kMostFfn)
      .or_else("`model.ffn`")
      .idle_if(!e.on(), dense);
  t.add("model.experts.shared_ffn", &e.shared_ffn,
        "width of an MLP beside the experts, which every token passes through (shared experts: the sum of "
        "their widths); 0: none")
      .between(0, kMostFfn)
      .idle_if(!e.on(), dense);
  t.add("model.experts.shared_gate", &e.shared_gate,
        "multiplies the output of that MLP by the sigmoid of a linear function of the token (Qwen2-MoE)")
      .idle_if(!e.on() || e.shared_ffn == 0,
               e.on() ? "there is no MLP of all tokens: shared_ffn is 0" : dense);
  t.add("model.experts.dense_layers", &e.dense_layers,
        "the first layers, whose MLPs are dense (DeepSeek-V3: 3, GLM-4.5: 1 or 3)")
      .between(0, kMostLayers)
      .idle_if(!e.on(), dense);
  t.add("model.experts.every", &e.every,
        "in each group of this many layers the last has experts, and the others have dense MLPs (Llama 4 "
        "Maverick: 2)")
      .between(1, kMostLayers)
      .idle_if(!e.on(), dense);
  t.choice(
       "model.experts.score", e.score,
       {{"softmax", job::RouterScore::softmax}, {"sigmoid", job::RouterScore::sigmoid}},
       "score of an expert for a token; softmax: its probability among all experts; sigmoid: the sigmoid of "
       "its logit (DeepSeek-V3, GLM-4.5)")
      .idle_if(!e.on(), dense);
  t.add("model.experts.groups", &e.groups,
        "groups of consecutive experts; a token chooses among those of the `top_groups` groups with the best "
        "experts (DeepSeek-V3: 8)")
      .between(1, static_cast<double>(kernels::kMostExpertGroups))
      .idle_if(!e.on(), dense);
  t.add("model.experts.top_groups", &e.top_groups, "groups that a token chooses among (DeepSeek-V3: 4)")
      .between(1, static_cast<double>(kernels::kMostExpertGroups))
      .idle_if(!e.on() || e.groups == 1, e.on() ? "there is one group of experts" : dense);
  t.add("model.experts.logit_bias", &e.logit_bias,
        "the router adds a vector of its own to its logits (gpt-oss)")
      .idle_if(!e.on(), dense);
  t.add("model.experts.bias", &e.bias,
        "each expert has a bias, which is added to its scores when a token's experts are chosen, but not to "
        "their weights; each step moves it by `optimizer.expert_bias_rate` towards even use (DeepSeek-V3, "
        "GLM-4.5)")
      .idle_if(!e.on(), dense);
  t.add("model.experts.scale", &e.scale, "factor of the weights of a token's experts (DeepSeek-V3: 2.5)")
      .above(0)
      .idle_if(!e.on(), dense);
}

}  // namespace trainerd::core::spec
