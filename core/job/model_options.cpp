#include "core/job/model_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace trainerd::core::job {
namespace {

/// Adapter parameters of one layer.
std::int64_t adapter_parameters(const ModelOptions& m) {
  const std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  std::int64_t sizes = 0;  // sum of inputs and outputs
  const auto add = [&](const char* projection, std::int64_t in, std::int64_t out) {
    if (m.lora.adapts(projection)) sizes += in + out;
  };
  add("q_proj", m.hidden, q), add("k_proj", m.hidden, kv), add("v_proj", m.hidden, kv);
  add("qkv_proj", m.hidden, q + 2 * kv), add("gate_up_proj", m.hidden, 2 * m.ffn);
  add("c_attn", m.hidden, q + 2 * kv), add("c_fc", m.hidden, m.ffn);
  add("c_proj", q, m.hidden), add("c_proj", m.ffn, m.hidden);
  add("o_proj", m.heads * value_head_dim(m), m.hidden);
  add("q_a_proj", m.hidden, m.mla.q_lora_rank), add("q_b_proj", m.mla.q_lora_rank, q);
  add("kv_a_proj_with_mqa", m.hidden, m.mla.kv_lora_rank + m.mla.qk_rope_head_dim);
  add("kv_b_proj", m.mla.kv_lora_rank, m.heads * (m.mla.qk_nope_head_dim + m.mla.v_head_dim));
  add("gate_proj", m.hidden, m.ffn), add("up_proj", m.hidden, m.ffn), add("down_proj", m.ffn, m.hidden);
  return m.lora.rank * sizes;
}

}  // namespace

std::string to_string(const LoraOptions& lora) {
  if (!lora.on()) return "";
  std::string text = "LoRA of rank " + std::to_string(lora.rank) + ", alpha ";
  std::array<char, 32> digits{};
  text.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), lora.alpha).ptr);
  text += " on";
  for (std::size_t i = 0; i < lora.targets.size(); ++i) text += (i == 0 ? " " : ", ") + lora.targets[i];
  return text;
}

void settle_experts(ModelOptions& m) {
  ExpertOptions& e = m.experts;
  if (e.on() && e.ffn > 0 && expert_layers(m) == m.layers) m.ffn = e.ffn;
  if (e.ffn == m.ffn) e.ffn = 0;
  if (e.every > 1) e.dense_layers -= e.dense_layers % e.every;  // the others of these layers are dense too
}

void settle_biases(ModelOptions& m) {
  if (m.attention_bias && m.mlp_bias) m.linear_bias = true;
  if (m.linear_bias) m.attention_bias = m.mlp_bias = true;
  if (m.attention_bias) m.qkv_bias = true;
}

void settle_scores(ModelOptions& m) {
  AttentionOptions& a = m.attention;
  if (a.query_pre_attn_scalar == static_cast<double>(m.head_dim)) a.query_pre_attn_scalar = 0;
  AttentionOptions unscaled = a;
  unscaled.scale = 0;
  ModelOptions plain = m;
  plain.attention = unscaled;
  if (a.scale == score_scale(plain)) a.scale = 0;
}

void settle_mla(ModelOptions& m) {
  if (!m.mla.on()) return;
  m.kv_heads = m.heads;
  m.head_dim = m.mla.qk_nope_head_dim + m.mla.qk_rope_head_dim;
}

std::int64_t attention_weights(const ModelOptions& m) {
  const std::int64_t q = m.heads * m.head_dim, out = m.heads * value_head_dim(m);
  if (!m.mla.on()) return m.hidden * (q + 2 * m.kv_heads * m.head_dim) + out * m.hidden;
  const MlaOptions& a = m.mla;
  const std::int64_t queries = a.q_lora_rank > 0 ? a.q_lora_rank * (m.hidden + q) : m.hidden * q;
  return queries + m.hidden * (a.kv_lora_rank + a.qk_rope_head_dim) +
         a.kv_lora_rank * m.heads * (a.qk_nope_head_dim + a.v_head_dim) + out * m.hidden;
}

double score_scale(const ModelOptions& m) {
  const AttentionOptions& a = m.attention;
  if (a.scale > 0) return a.scale;
  const double scalar = a.query_pre_attn_scalar;
  return 1.0 / std::sqrt(scalar > 0 ? scalar : static_cast<double>(m.head_dim));
}

std::int64_t expert_layers(const ModelOptions& m) { return expert_layers(m, 0, m.layers); }

std::int64_t expert_layers(const ModelOptions& m, std::int64_t first, std::int64_t count) {
  // As in `layer_options`: the last of every `every` layers.
  const ExpertOptions& e = m.experts;
  const std::int64_t every = std::max<std::int64_t>(1, e.every), end = first + count;
  return e.on() ? end / every - std::clamp(e.dense_layers, first, end) / every : 0;
}

std::int64_t expert_ffn(const ModelOptions& m) { return m.experts.ffn > 0 ? m.experts.ffn : m.ffn; }

namespace {

/// Elements of the matrices of an MLP of this width.
std::int64_t mlp_weights(const ModelOptions& m, std::int64_t ffn) {
  return (gated(m.mlp) ? 3 : 2) * m.hidden * ffn;
}

/// Of a layer with experts, each token's `experts` of them.
std::int64_t expert_layer_weights(const ModelOptions& m, std::int64_t experts) {
  const ExpertOptions& e = m.experts;
  return experts * mlp_weights(m, expert_ffn(m)) + e.count * m.hidden + mlp_weights(m, e.shared_ffn) +
         (e.shared_gate ? m.hidden : 0);
}

/// Of all layers, with as many experts of each that has them.
std::int64_t all_mlp_weights(const ModelOptions& m, std::int64_t experts) {
  const std::int64_t layers = expert_layers(m);
  return (m.layers - layers) * mlp_weights(m, m.ffn) + layers * expert_layer_weights(m, experts);
}

}  // namespace

std::int64_t mlp_weights_of_token(const ModelOptions& m) { return all_mlp_weights(m, m.experts.per_token); }

ParameterCount count_parameters(const ModelOptions& m) {
  const std::int64_t q = m.heads * m.head_dim;
  const std::int64_t kv = m.kv_heads * m.head_dim;
  const std::int64_t norm = m.norm == Norm::layer ? 2 * m.hidden : m.hidden;  // weight, and LayerNorm's bias

  const std::int64_t attention = attention_weights(m);
  std::int64_t small = (m.norm_placement == NormPlacement::sandwich ? 4 : 2) * norm;
  if (m.linear_bias || m.attention_bias || m.qkv_bias) small += q + 2 * kv;
  if (m.linear_bias || m.attention_bias) small += m.hidden;
  if (m.attention.sinks) small += m.heads;
  if (m.mla.on()) small += m.mla.q_lora_rank + m.mla.kv_lora_rank;
  if (m.qk_norm) small += m.qk_norm_span == QkNormSpan::all ? q + kv : 2 * m.head_dim;

  const std::int64_t table = m.vocab * m.hidden;
  ParameterCount count;
  count.matmul = m.layers * attention + mlp_weights_of_token(m) + table;
  const std::int64_t routed = expert_layers(m);
  const auto mlp_biases = [&](std::int64_t ffn) { return (gated(m.mlp) ? 2 * ffn : ffn) + m.hidden; };
  if (m.experts.bias) count.total += routed * m.experts.count;
  if (m.experts.logit_bias) count.total += routed * m.experts.count;
  if (m.linear_bias || m.mlp_bias)
    count.total +=
        (m.layers - routed) * mlp_biases(m.ffn) + routed * m.experts.count * mlp_biases(expert_ffn(m));
  count.total += m.layers * (attention + small) + all_mlp_weights(m, m.experts.count) + norm + table;
  if (!m.tie_embeddings) count.total += table;
  if (m.positions == Positions::learned) count.total += m.seq_len * m.hidden;
  count.adapters = m.layers * adapter_parameters(m);
  return count;
}

double flops_per_token(const ModelOptions& m) {
  const auto s = static_cast<double>(m.seq_len);
  double keys = static_cast<double>(m.layers) * s;  // sum over layers of twice the keys per query
  for (std::int64_t layer = 0; m.attention.window > 0 && layer < m.layers; ++layer)
    if (const auto w = static_cast<double>(layer_options(m, layer).window); w > 0)
      keys += 2 * w - w * w / s - s;
  const double attention = keys * static_cast<double>(m.heads * (m.head_dim + value_head_dim(m))) / 2;
  const ParameterCount count = count_parameters(m);
  const double of_weight = m.lora.on() ? 4.0 : 6.0;
  return of_weight * static_cast<double>(count.matmul) + 6.0 * static_cast<double>(count.adapters) +
         6.0 * attention;
}

}  // namespace trainerd::core::job
