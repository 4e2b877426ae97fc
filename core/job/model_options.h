#pragma once

#include <cstdint>
#include <string>

#include "core/job/layer_options.h"
#include "core/job/lora_options.h"

namespace trainerd::core::job {

enum class Norm : std::uint8_t { rms, layer };
enum class Positions : std::uint8_t { rope, learned };
/// Swiglu_clamped is gpt-oss's: kernels::Gate::clamped.
enum class Mlp : std::uint8_t { swiglu, gelu, geglu, swiglu_clamped };
/// Position of the norms of a half-layer: before it (GPT-2, Llama), on its output before the residual add
/// (OLMo 2), or both (Gemma 2 and 3).
enum class NormPlacement : std::uint8_t { pre, post, sandwich };
/// Meaning of RMS norm weights: factors, or factors minus 1 (Gemma).
enum class NormWeight : std::uint8_t { factor, less_one };

/// Span of the RMS norm of queries and keys: each head separately (Qwen 3), or all query heads together and
/// all key heads together (OLMo 2).
enum class QkNormSpan : std::uint8_t { head, all };

inline bool gated(Mlp mlp) { return mlp != Mlp::gelu; }

/// Fractions of elements dropped in training (kernels::Dropout). No dropout in evaluation.
struct DropoutOptions {
  double embedding = 0;  ///< for the sum of embeddings (GPT-2's embd_pdrop)
  double residual = 0;   ///< for the outputs of attention and MLP (resid_pdrop)

  bool on() const { return embedding > 0 || residual > 0; }
  bool operator==(const DropoutOptions&) const = default;
};

/// Score of an expert: its probability under a softmax over all of them, or a sigmoid of its own
/// (DeepSeek-V3). See kernels/ops/experts.h.
enum class RouterScore : std::uint8_t { softmax, sigmoid };

/// Layers with experts: each token passes through the `per_token` experts that a router chooses for it, and
/// through the shared MLP, if there is one.
struct ExpertOptions {
  std::int64_t count = 0;         ///< 0: dense MLPs
  std::int64_t per_token = 0;     ///< K
  bool normalise = true;          ///< divide the scores of a token's experts by their sum
  std::int64_t ffn = 0;           ///< F of each expert; 0: that of dense MLPs
  std::int64_t shared_ffn = 0;    ///< F of the shared MLP; 0: none
  bool shared_gate = false;       ///< its output is multiplied by a sigmoid of the token (Qwen2-MoE)
  std::int64_t dense_layers = 0;  ///< the first layers, which have dense MLPs
  std::int64_t every = 1;         ///< of as many consecutive layers the last has experts, the others none
  RouterScore score = RouterScore::softmax;
  /// Groups of consecutive experts; a token's experts are of the `top_groups` best (RouteForward).
  std::int64_t groups = 1, top_groups = 1;
  bool logit_bias = false;  ///< the router adds a vector to its logits (gpt-oss)
  bool bias = false;   ///< a bias per expert joins its score in the choice alone, and evens out their use
  double scale = 1.0;  ///< factor of these scores, normalised or not (DeepSeek's routed_scaling_factor)

  bool on() const { return count > 0; }
  bool operator==(const ExpertOptions&) const = default;
};

/// A decoder-only transformer. Sizes are of the logical model, without padding and sharding.
struct ModelOptions {
  std::string preset;  ///< name under configs/models/, or empty
  std::string from;    ///< directory of initial weights; empty: random from the seed
  std::int64_t layers = 0;
  std::int64_t hidden = 0;    ///< D
  std::int64_t heads = 0;     ///< H
  std::int64_t kv_heads = 0;  ///< K; default `heads`
  std::int64_t head_dim = 0;  ///< E; default hidden / heads; with `mla` the sum of its two parts
  std::int64_t ffn = 0;       ///< F
  std::int64_t vocab = 0;     ///< V
  std::int64_t seq_len = 0;   ///< S
  Norm norm = Norm::rms;
  NormPlacement norm_placement = NormPlacement::pre;
  NormWeight norm_weight = NormWeight::factor;
  Positions positions = Positions::rope;
  double rope_theta = 10000.0;
  double rotary_fraction = 1.0;  ///< fraction of each head's elements, from its start, that are rotated
  RopeScaling rope_scaling;
  AttentionOptions attention;
  MlaOptions mla;
  Mlp mlp = Mlp::swiglu;
  ExpertOptions experts;
  bool linear_bias = false;     ///< key `bias`: biases on every linear layer (GPT-2); implies the following
  bool attention_bias = false;  ///< biases on every projection of attention (Llama's); implies `qkv_bias`
  bool qkv_bias = false;        ///< biases on the query, key and value projections (Qwen 2.5)
  bool mlp_bias = false;        ///< biases on the linear layers of the MLP
  bool qk_norm = false;         ///< RMS norm of queries and keys
  QkNormSpan qk_norm_span = QkNormSpan::head;
  bool tie_embeddings = false;
  bool scale_embeddings = false;  ///< by sqrt(hidden), rounded to the activations' dtype
  double embedding_scale = 1.0;   ///< factor of embeddings (Granite); not with `scale_embeddings`
  double residual_scale = 1.0;    ///< factor of the outputs of attention and MLP (Granite)
  double logit_divisor = 1.0;     ///< logits are divided by it (Granite)
  double logit_softcap = 0.0;     ///< logits x become logit_softcap tanh(x / logit_softcap); 0: off
  double norm_eps = 1e-5;
  double init = 0.02;      ///< standard deviation; output projections get init / sqrt(2 layers)
  LoraOptions lora;        ///< top-level key `lora`: what is trained of the model
  DropoutOptions dropout;  ///< top-level key `dropout`

  bool operator==(const ModelOptions&) const = default;
};

enum class RecomputeKind : std::uint8_t { none, selective, full };

/// What layers keep of their forward pass and what backward recomputes: see core/model/recompute.h.
struct RecomputeOptions {
  RecomputeKind kind = RecomputeKind::none;
  std::int64_t every = 1;  ///< full only: layers 0, every, 2 every, ... of the model are recomputed

  bool operator==(const RecomputeOptions&) const = default;
};

/// These bring options that imply each other, or are equivalent, to one form. Where all layers have experts,
/// `ffn` is the experts'.
void settle_experts(ModelOptions& model);
void settle_biases(ModelOptions& model);
void settle_scores(ModelOptions& model);
/// With `mla`: number and size of heads.
void settle_mla(ModelOptions& model);

/// The factor of scores.
double score_scale(const ModelOptions& model);

/// Layers with experts, of all layers or of `count` from `first` on; and F of each expert.
std::int64_t expert_layers(const ModelOptions& model);
std::int64_t expert_layers(const ModelOptions& model, std::int64_t first, std::int64_t count);
std::int64_t expert_ffn(const ModelOptions& model);

/// Elements of a value head.
inline std::int64_t value_head_dim(const ModelOptions& m) {
  return m.mla.on() ? m.mla.v_head_dim : m.head_dim;
}
/// Elements of the matrices of one layer's attention.
std::int64_t attention_weights(const ModelOptions& model);

/// Number of a head's elements that are rotated.
inline std::int64_t rotated_elements(const ModelOptions& m) {
  if (m.mla.on()) return m.mla.qk_rope_head_dim;
  return static_cast<std::int64_t>(m.rotary_fraction * static_cast<double>(m.head_dim));
}

/// Parameters of the logical model, and those used in a token's matrix multiplications (output head included,
/// input embedding and position table not; a tied table counts once in both; of experts those of one token).
struct ParameterCount {
  std::int64_t total = 0;
  std::int64_t matmul = 0;
  std::int64_t adapters = 0;  ///< not in `total`; the only trained parameters, if there are any
};
ParameterCount count_parameters(const ModelOptions& model);
/// Elements of the MLPs' matrices that a token is multiplied by, in all layers.
std::int64_t mlp_weights_of_token(const ModelOptions& model);

/// Model FLOPs of one token's forward and backward: 6 x matmul parameters + 6 layers (heads x head_dim)
/// seq_len. The second term is causal attention (half of 12 L d S), with the mean size of query and value
/// heads; a sliding layer with window w has 2 w -
/// w^2 / S in place of S. With adapters the weights have no gradients: 4 x matmul parameters + 6 x adapter
/// parameters. MFU always uses this convention; recomputation does not count.
double flops_per_token(const ModelOptions& model);

}  // namespace trainerd::core::job
