#include "core/model/parameters.h"

#include <cmath>

namespace trainerd::core {
namespace {

using kernels::Shape;
using parallel::Along;
using parallel::AxisRule;

/// Adds parameters under a common prefix, with the model's initialisation.
class Declarer {
 public:
  Declarer(const ModelOptions& model, std::int64_t tokens, std::vector<ParamInfo>& infos)
      : model_(model), tokens_(tokens), infos_(infos) {}

  ParamId matrix(const std::string& name, const Shape& shape, double stddev, const AxisRule& tp, bool gemm) {
    return add({.name = name, .shard = spec(shape, tp), .init_mean = 0, .init_stddev = static_cast<float>(stddev),
                .decay = true, .gemm_weight = gemm, .gemm_tokens = tokens_});
  }
  ParamId vector(const std::string& name, std::int64_t size, float value, const AxisRule& tp = {}) {
    return add({.name = name, .shard = spec({size}, tp), .init_mean = value});
  }
  LinearParams linear(const std::string& prefix, std::int64_t out, std::int64_t in, double stddev, const AxisRule& tp,
                      bool biased) {
    LinearParams params{matrix(prefix + ".weight", {out, in}, stddev, tp, true), kNoParam};
    // A row-parallel linear is split along its inputs: its bias is whole on every rank.
    if (biased) params.bias = vector(prefix + ".bias", out, 0.0f, tp.dim == 0 ? tp : AxisRule{});
    return params;
  }
  LinearParams norm(const std::string& prefix) {
    LinearParams params{vector(prefix + ".weight", model_.hidden, 1.0f), kNoParam};
    if (model_.norm == Norm::layer) params.bias = vector(prefix + ".bias", model_.hidden, 0.0f);
    return params;
  }

 private:
  static parallel::ShardSpec spec(const Shape& shape, const AxisRule& tp) {
    return {.logical = shape, .padded = shape, .tp = tp, .owner = true, .trainable = true};
  }
  ParamId add(ParamInfo info) {
    infos_.push_back(std::move(info));
    return static_cast<ParamId>(infos_.size()) - 1;
  }
  const ModelOptions& model_;
  std::int64_t tokens_;
  std::vector<ParamInfo>& infos_;
};

LayerParams declare_layer(Declarer& declare, const ModelOptions& m, std::int64_t index) {
  const std::string prefix = "layers." + std::to_string(index) + ".";
  const std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  // What adds to the residual stream starts smaller, so that its variance does not grow with depth (GPT-2, section 2.3).
  const double residual_init = m.init / std::sqrt(2.0 * static_cast<double>(m.layers));
  LayerParams layer;
  layer.attn_norm = declare.norm(prefix + "attn_norm");
  layer.qkv = declare.linear(prefix + "qkv", q + 2 * kv, m.hidden, m.init, {Along::split, 0, {q, kv, kv}},
                             m.linear_bias || m.qkv_bias);
  if (m.qk_norm) {
    layer.q_norm = declare.vector(prefix + "q_norm.weight", m.head_dim, 1.0f);
    layer.k_norm = declare.vector(prefix + "k_norm.weight", m.head_dim, 1.0f);
  }
  layer.attn_out = declare.linear(prefix + "attn_out", m.hidden, q, residual_init, {Along::split, 1, {}}, m.linear_bias);
  layer.mlp_norm = declare.norm(prefix + "mlp_norm");
  if (m.mlp == Mlp::swiglu)
    layer.up = declare.linear(prefix + "gate_up", 2 * m.ffn, m.hidden, m.init, {Along::split, 0, {m.ffn, m.ffn}}, m.linear_bias);
  else
    layer.up = declare.linear(prefix + "up", m.ffn, m.hidden, m.init, {Along::split, 0, {}}, m.linear_bias);
  layer.down = declare.linear(prefix + "down", m.hidden, m.ffn, residual_init, {Along::split, 1, {}}, m.linear_bias);
  return layer;
}

}  // namespace

ChunkParams declare_parameters(const ModelOptions& model, const parallel::StageSpan& span, std::int64_t microbatch_tokens,
                               std::vector<ParamInfo>& infos) {
  Declarer declare(model, microbatch_tokens, infos);
  ChunkParams chunk;
  const AxisRule vocab_rows{Along::split, 0, {}};
  if (span.embedding) {
    chunk.embedding = declare.matrix("embed.weight", {model.vocab, model.hidden}, model.init, vocab_rows, model.tie_embeddings);
    if (model.positions == Positions::learned)
      chunk.positions = declare.matrix("positions.weight", {model.seq_len, model.hidden}, model.init, {}, false);
  }
  for (std::int64_t i = 0; i < span.layers; ++i)
    chunk.layers.push_back(declare_layer(declare, model, span.first_layer + i));
  if (span.head) {
    chunk.final_norm = declare.norm("final_norm");
    chunk.head = model.tie_embeddings
                     ? chunk.embedding
                     : declare.matrix("head.weight", {model.vocab, model.hidden}, model.init, vocab_rows, true);
  }
  return chunk;
}

}  // namespace trainerd::core
