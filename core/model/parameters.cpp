#include "core/model/parameters.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>

namespace trainerd::core::model {
namespace {

using kernels::Shape;
using parallel::ShardSpec;
using parallel::SplitSegment;
using parallel::TensorPlacement;

/// How tensor parallelism places a parameter.
struct Rule {
  TensorPlacement placement = TensorPlacement::replicate;
  int dim = 0;
  std::vector<SplitSegment> segments;
  std::int64_t pad_to = 0;
};

/// Adds parameters under a common prefix, with the model's initialisation.
class Declarer {
 public:
  Declarer(const job::ModelOptions& model, std::int64_t tokens, bool sequence_parallel,
           std::int64_t vocab_multiple, const ExpertShare& share, std::vector<ParamInfo>& infos)
      : model_(model),
        tokens_(tokens),
        vocab_multiple_(vocab_multiple),
        share_(share),
        norm_rule_{sequence_parallel ? TensorPlacement::partial : TensorPlacement::replicate, 0, {}, 0},
        infos_(infos) {}

  /// The next parameters belong to another chunk, or to other matrices of the chunk.
  void begin_chunk() { vectors_.reset(), begin_unit(); }
  void begin_unit() { matrices_.reset(); }

  ParamId matrix(const std::string& name, const Shape& shape, double stddev, const Rule& tp, bool gemm,
                 bool owner = true) {
    return add(matrices_, {.name = name,
                           .shard = spec(shape, tp, owner),
                           .init_mean = 0,
                           .init_stddev = static_cast<float>(stddev),
                           .decay = true,
                           .gemm_weight = gemm,
                           .gemm_tokens = tokens_});
  }
  /// A vector whose gradient is computed with the input gradients.
  ParamId vector(const std::string& name, std::int64_t size, float value, const Rule& tp = {}) {
    return add(vectors_,
               {.name = name, .shard = spec({size}, tp, true), .init_mean = value, .vectors = true});
  }
  ParamId balance_biases(const std::string& name, std::int64_t experts, std::int64_t layer) {
    const ParamId id = vector(name, experts, 0.0f);
    infos_.back().biases_of_layer = layer;
    return id;
  }
  ParamId bias(const std::string& name, std::int64_t size, const Rule& tp) {
    return add(matrices_, {.name = name, .shard = spec({size}, tp, true)});
  }
  /// `projections`: names of the weight's projections, by rows; `merged`: name of the whole, if it has
  /// several.
  LinearParams linear(const std::string& prefix, std::int64_t out, std::int64_t in, double stddev,
                      const Rule& tp, bool biased, std::initializer_list<const char*> projections,
                      const char* merged = nullptr) {
    LinearParams params{matrix(prefix + ".weight", {out, in}, stddev, tp, true), kNoParam};
    infos_.back().shard.granularity = parallel::Granularity::matrix;
    infos_.back().projection = true;
    // A row-parallel linear is split along its inputs: its bias is whole on every rank.
    if (biased) params.bias = bias(prefix + ".bias", out, tp.dim == 0 ? tp : Rule{});
    if (merged != nullptr && model_.lora.adapts(merged)) params.adapter = whole_adapter(prefix, out, in, tp);
    else params.adapter = adapter(prefix, out, in, tp, projections);
    return params;
  }
  /// See parallel/tensor/adapter.h for which gradients are partial sums. A is drawn and B is 0, as in PEFT
  /// (Kaiming's uniform distribution with a = sqrt(5): up to 1 / sqrt(inputs)).
  AdapterParams adapter(const std::string& prefix, std::int64_t out, std::int64_t in, const Rule& tp,
                        std::initializer_list<const char*> projections) {
    AdapterParams params;
    Rule of_b{tp.dim == 0 ? tp.placement : TensorPlacement::partial, 0, {}, 0};
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < projections.size(); ++i) {
      if (!model_.lora.adapts(projections.begin()[i])) continue;
      params.segments.push_back(i);
      rows += tp.dim == 0 ? tp.segments.at(i).size : out;
      if (tp.dim == 0) of_b.segments.push_back(tp.segments.at(i));
    }
    if (!params.segments.empty()) declare_adapter(params, prefix, rows, in, tp, of_b);
    return params;
  }
  /// One adapter for a whole merged weight that is cut by rows.
  AdapterParams whole_adapter(const std::string& prefix, std::int64_t out, std::int64_t in, const Rule& tp) {
    AdapterParams params;
    params.segments = {0};
    params.whole = true;
    declare_adapter(params, prefix, out, in, tp, tp);
    return params;
  }
  void declare_adapter(AdapterParams& params, const std::string& prefix, std::int64_t rows, std::int64_t in,
                       const Rule& tp, const Rule& of_b) {
    // If the weight is whole on every rank, the gradient of A is complete or partial like the weight's.
    const TensorPlacement by_rows =
        tp.placement == TensorPlacement::shard ? TensorPlacement::partial : tp.placement;
    const Rule of_a = tp.dim == 0 ? Rule{by_rows, 0, {}, 0} : tp;
    const auto count = static_cast<std::int64_t>(params.segments.size()), rank = model_.lora.rank;
    params.a =
        matrix(prefix + ".lora_a", {count * rank, in}, 1 / std::sqrt(static_cast<double>(in)), of_a, false);
    infos_.back().init_draw = kernels::Draw::uniform;
    infos_.back().trainable = true;
    params.b = matrix(prefix + ".lora_b", {rows, rank}, 0, of_b, false);
    infos_.back().trainable = true;
  }
  /// A linear layer that is whole on every tp rank. Its projections are stacked by rows.
  LinearParams whole_linear(const std::string& prefix, std::int64_t out, std::int64_t in, double stddev,
                            std::vector<SplitSegment> segments,
                            std::initializer_list<const char*> projections) {
    return linear(prefix, out, in, stddev, {norm_rule_.placement, 0, std::move(segments), 0}, false,
                  projections);
  }
  ParamId latent_norm(const std::string& name, std::int64_t size) {
    return vector(name, size, first_norm_weight(), norm_rule_);
  }
  LinearParams norm(const std::string& prefix) {
    LinearParams params{vector(prefix + ".weight", model_.hidden, first_norm_weight(), norm_rule_), kNoParam};
    if (model_.norm == job::Norm::layer)
      params.bias = vector(prefix + ".bias", model_.hidden, 0.0f, norm_rule_);
    return params;
  }
  /// The initial norm weight, which represents a factor of 1.
  float first_norm_weight() const { return model_.norm_weight == job::NormWeight::less_one ? 0.0f : 1.0f; }
  /// The matrices of this rank's experts, out of `count` of `rows` rows each.
  ParamId experts(const std::string& name, std::int64_t count, std::int64_t rows, std::int64_t columns,
                  double stddev, const Rule& tp) {
    const std::int64_t mine = count / share_.ranks * rows;
    const ParamId id = matrix(name, {mine, columns}, stddev, tp, false);
    infos_.back().shard.granularity = parallel::Granularity::matrix;
    infos_.back().shard.stacked = experts_of_rank(count);
    infos_.back().projection = true;
    if (!share_.apart) return id;
    infos_.back().expert = true;
    infos_.back().shard.first_row = share_.rank * mine;
    infos_.back().shard.file_rows = count * rows;
    return id;
  }
  /// The same for their biases, of `size` numbers each.
  ParamId expert_biases(const std::string& name, std::int64_t count, std::int64_t size, const Rule& tp) {
    const std::int64_t mine = experts_of_rank(count) * size;
    const ParamId id = bias(name, mine, tp);
    if (!share_.apart) return id;
    infos_.back().expert = true;
    infos_.back().shard.first_row = share_.rank * mine;
    infos_.back().shard.file_rows = count * size;
    return id;
  }
  std::int64_t experts_of_rank(std::int64_t count) const { return count / share_.ranks; }
  ParamId vocabulary(const std::string& name, bool gemm, bool owner) {
    const ParamId id = matrix(name, {model_.vocab, model_.hidden}, model_.init,
                              {TensorPlacement::shard, 0, {{model_.vocab, 1}}, vocab_multiple_}, gemm, owner);
    infos_.back().cut_alone = true;
    return id;
  }

 private:
  static ShardSpec spec(const Shape& shape, const Rule& tp, bool owner) {
    return {.logical = shape,
            .placement = tp.placement,
            .dim = tp.dim,
            .segments = tp.segments,
            .pad_to = tp.pad_to,
            .owner = owner};
  }
  ParamId add(std::optional<std::size_t>& unit, ParamInfo info) {
    if (!unit) unit = units_++;
    info.unit = *unit;
    info.trainable = !model_.lora.on();
    infos_.push_back(std::move(info));
    return static_cast<ParamId>(infos_.size()) - 1;
  }
  const job::ModelOptions& model_;
  std::int64_t tokens_;
  std::int64_t vocab_multiple_;
  ExpertShare share_;
  Rule norm_rule_;
  std::vector<ParamInfo>& infos_;
  std::size_t units_ = 0;
  std::optional<std::size_t> vectors_,
      matrices_;  ///< units of the chunk's vectors and its current matrices
};

Rule query_key_value(const job::ModelOptions& m) {
  const std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  return {TensorPlacement::shard, 0, {{q, m.head_dim}, {kv, m.head_dim}, {kv, m.head_dim}}, 0};
}

LatentParams declare_latent(Declarer& declare, const job::ModelOptions& m, const std::string& prefix) {
  const job::MlaOptions& a = m.mla;
  const std::int64_t queries = m.heads * m.head_dim, each = a.qk_nope_head_dim + a.v_head_dim;
  const SplitSegment kv_down{a.kv_lora_rank + a.qk_rope_head_dim, 1};
  const Rule of_queries{TensorPlacement::shard, 0, {{queries, m.head_dim}}, 0},
      of_keys{TensorPlacement::shard, 0, {{m.heads * each, each}}, 0};
  LatentParams latent;
  if (a.q_lora_rank > 0) {
    latent.down = declare.whole_linear(prefix + "qkv_down", a.q_lora_rank + kv_down.size, m.hidden, m.init,
                                       {{a.q_lora_rank, 1}, kv_down}, {"q_a_proj", "kv_a_proj_with_mqa"});
    latent.q_norm = declare.latent_norm(prefix + "q_latent_norm.weight", a.q_lora_rank);
    latent.q =
        declare.linear(prefix + "q_up", queries, a.q_lora_rank, m.init, of_queries, false, {"q_b_proj"});
  } else {
    latent.down = declare.whole_linear(prefix + "kv_down", kv_down.size, m.hidden, m.init, {kv_down},
                                       {"kv_a_proj_with_mqa"});
    latent.q = declare.linear(prefix + "q", queries, m.hidden, m.init, of_queries, false, {"q_proj"});
  }
  latent.kv_norm = declare.latent_norm(prefix + "kv_latent_norm.weight", a.kv_lora_rank);
  latent.kv =
      declare.linear(prefix + "kv_up", m.heads * each, a.kv_lora_rank, m.init, of_keys, false, {"kv_b_proj"});
  return latent;
}

bool mlp_bias(const job::ModelOptions& m) { return m.linear_bias || m.mlp_bias; }

/// The projections of a gated MLP of this width.
LinearParams declare_gate_up(Declarer& declare, const job::ModelOptions& m, const std::string& name,
                             std::int64_t ffn) {
  return declare.linear(name, 2 * ffn, m.hidden, m.init, {TensorPlacement::shard, 0, {{ffn, 1}, {ffn, 1}}, 0},
                        mlp_bias(m), {"gate_proj", "up_proj"}, "gate_up_proj");
}
LinearParams declare_down(Declarer& declare, const job::ModelOptions& m, const std::string& name,
                          std::int64_t ffn, double residual_init) {
  return declare.linear(name, m.hidden, ffn, residual_init, {TensorPlacement::shard, 1, {{ffn, 1}}, 0},
                        mlp_bias(m), {job::gated(m.mlp) ? "down_proj" : "c_proj"});
}

/// The router is whole on every rank, whose experts are parts: the router's gradient is a partial sum.
void declare_experts(Declarer& declare, const job::ModelOptions& m, const std::string& prefix,
                     double residual_init, LayerParams& layer) {
  const std::int64_t experts = m.experts.count;
  layer.router = declare.matrix(prefix + "router.weight", {experts, m.hidden}, m.init,
                                {TensorPlacement::partial, 0, {}, 0}, true);
  // Gate and up projection of each expert are cut on their own.
  if (m.experts.bias)
    layer.router_bias = declare.balance_biases(prefix + "router_bias.weight", experts, layer.index);
  if (m.experts.logit_bias)
    layer.logit_bias = declare.bias(prefix + "router.bias", experts, {TensorPlacement::partial, 0, {}, 0});
  const std::int64_t ffn = job::expert_ffn(m);
  const std::vector<SplitSegment> halves(static_cast<std::size_t>(2 * declare.experts_of_rank(experts)),
                                         {ffn, 1});
  layer.up.weight = declare.experts(prefix + "experts.gate_up.weight", experts, 2 * ffn, m.hidden, m.init,
                                    {TensorPlacement::shard, 0, halves, 0});
  layer.down.weight = declare.experts(prefix + "experts.down.weight", experts, m.hidden, ffn, residual_init,
                                      {TensorPlacement::shard, 1, {{ffn, 1}}, 0});
  if (mlp_bias(m)) {
    layer.up.bias = declare.expert_biases(prefix + "experts.gate_up.bias", experts, 2 * ffn,
                                          {TensorPlacement::shard, 0, halves, 0});
    // Each rank has all rows of an expert's outputs, and so the whole gradient.
    layer.down.bias = declare.expert_biases(prefix + "experts.down.bias", experts, m.hidden, {});
  }
  if (m.experts.shared_ffn == 0) return;
  layer.shared_up = declare_gate_up(declare, m, prefix + "shared.gate_up", m.experts.shared_ffn);
  layer.shared_down = declare_down(declare, m, prefix + "shared.down", m.experts.shared_ffn, residual_init);
  if (m.experts.shared_gate)
    layer.shared_gate = declare.matrix(prefix + "shared_gate.weight", {1, m.hidden}, m.init,
                                       {TensorPlacement::partial, 0, {}, 0}, true);
}

LayerParams declare_layer(Declarer& declare, const job::ModelOptions& m, std::int64_t index) {
  const std::string prefix = "layers." + std::to_string(index) + ".";
  const std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  // Projections that add to the residual stream start smaller, so that its variance does not grow with depth
  // (GPT-2, section 2.3).
  const double residual_init = m.init / std::sqrt(2.0 * static_cast<double>(m.layers));
  LayerParams layer;
  layer.index = index;
  layer.options = job::layer_options(m, index);
  const bool before = m.norm_placement != job::NormPlacement::post,
             after = m.norm_placement != job::NormPlacement::pre;
  if (before) layer.attn_norm = declare.norm(prefix + "attn_norm");
  if (m.mla.on()) layer.latent = declare_latent(declare, m, prefix);
  else
    layer.qkv = declare.linear(prefix + "qkv", q + 2 * kv, m.hidden, m.init, query_key_value(m),
                               m.linear_bias || m.attention_bias || m.qkv_bias,
                               {"q_proj", "k_proj", "v_proj"}, job::gated(m.mlp) ? "qkv_proj" : "c_attn");
  if (m.qk_norm) {
    // Each rank sees only its own heads. A weight shared by all heads gets a partial sum of its gradient from
    // each rank; weights for all heads are cut like the heads.
    const auto norm = [&](const char* name, std::int64_t elements) {
      if (m.qk_norm_span == job::QkNormSpan::all)
        return declare.vector(prefix + name, elements, declare.first_norm_weight(),
                              {TensorPlacement::shard, 0, {{elements, m.head_dim}}, 0});
      return declare.vector(prefix + name, m.head_dim, declare.first_norm_weight(),
                            {TensorPlacement::partial, 0, {}, 0});
    };
    layer.q_norm = norm("q_norm.weight", q);
    layer.k_norm = norm("k_norm.weight", kv);
  }
  if (m.attention.sinks)
    layer.sinks = declare.vector(prefix + "sinks.weight", m.heads, 0.0f,
                                 {TensorPlacement::shard, 0, {{m.heads, 1}}, 0});
  layer.attn_out = declare.linear(
      prefix + "attn_out", m.hidden, m.heads * job::value_head_dim(m), residual_init,
      {TensorPlacement::shard, 1, {{m.heads * job::value_head_dim(m), job::value_head_dim(m)}}, 0},
      m.linear_bias || m.attention_bias, {job::gated(m.mlp) ? "o_proj" : "c_proj"});
  if (after) layer.attn_post_norm = declare.norm(prefix + "attn_post_norm");
  if (before) layer.mlp_norm = declare.norm(prefix + "mlp_norm");
  if (layer.options.experts) declare_experts(declare, m, prefix, residual_init, layer);
  else if (job::gated(m.mlp)) layer.up = declare_gate_up(declare, m, prefix + "gate_up", m.ffn);
  else
    layer.up = declare.linear(prefix + "up", m.ffn, m.hidden, m.init,
                              {TensorPlacement::shard, 0, {{m.ffn, 1}}, 0}, mlp_bias(m), {"c_fc"});
  if (!layer.options.experts) layer.down = declare_down(declare, m, prefix + "down", m.ffn, residual_init);
  if (after) layer.mlp_post_norm = declare.norm(prefix + "mlp_post_norm");
  return layer;
}

}  // namespace

DeclaredParams declare_parameters(const job::ModelOptions& model, std::span<const parallel::ChunkSpan> chunks,
                                  std::int64_t microbatch_tokens, bool sequence_parallel,
                                  std::int64_t vocab_multiple, const ExpertShare& share) {
  DeclaredParams declared;
  Declarer declare(model, microbatch_tokens, sequence_parallel, vocab_multiple, share, declared.infos);
  ParamId embedding = kNoParam;
  bool has_head = false;
  for (const parallel::ChunkSpan& span : chunks) {
    ChunkParams chunk;
    chunk.first_layer = span.first_layer;
    declare.begin_chunk();
    has_head = has_head || span.head;
    if (span.embedding) {
      chunk.embedding = embedding = declare.vocabulary("embed.weight", model.tie_embeddings, true);
      if (model.positions == job::Positions::learned)
        chunk.positions =
            declare.matrix("positions.weight", {model.seq_len, model.hidden}, model.init, {}, false);
    }
    for (std::int64_t i = 0; i < span.layers; ++i) {
      declare.begin_unit();
      chunk.layers.push_back(declare_layer(declare, model, span.first_layer + i));
    }
    if (span.head) {
      declare.begin_unit();
      chunk.final_norm = declare.norm("final_norm");
      if (!model.tie_embeddings) chunk.head = declare.vocabulary("head.weight", true, true);
      else if (embedding != kNoParam) {
        chunk.head = embedding;
        declared.infos[static_cast<std::size_t>(embedding)].grad_uses = 2;
      } else chunk.head = declared.tied_copy = declare.vocabulary("embed.weight", true, false);
    }
    declared.chunks.push_back(std::move(chunk));
  }
  if (model.tie_embeddings && embedding != kNoParam && !has_head) declared.tied_copy = embedding;
  return declared;
}

std::int64_t expert_slots(const job::ModelOptions& model, std::int64_t tokens, std::int64_t ranks,
                          double capacity, parallel::ExpertComm comm) {
  if (ranks == 1 || capacity == 0 || comm == parallel::ExpertComm::all_gather) return 0;
  // The probability that a token chooses no expert of a given rank and so needs no slot there. It chooses
  // different experts, so each choice leaves one expert less.
  double elsewhere = 1;
  const double experts = static_cast<double>(model.experts.count),
               of_rank = static_cast<double>(model.experts.count / ranks);
  for (std::int64_t k = 0; k < model.experts.per_token; ++k)
    elsewhere *= std::max(0.0, 1 - of_rank / (experts - static_cast<double>(k)));
  const double all = static_cast<double>(tokens), slots = std::ceil(capacity * (1 - elsewhere) * all);
  return slots < all ? static_cast<std::int64_t>(slots) : tokens;
}

std::int64_t expert_rows(const job::ModelOptions& model, std::int64_t tokens, std::int64_t ranks,
                         double capacity) {
  const std::int64_t rows = tokens * model.experts.per_token;
  if (ranks == 1) return rows;
  const std::int64_t most = ranks * tokens * std::min(model.experts.per_token, model.experts.count / ranks);
  if (capacity == 0) return most;
  const double limit = std::ceil(capacity * static_cast<double>(rows));
  return limit < static_cast<double>(most) ? static_cast<std::int64_t>(limit) : most;
}

LocalSizes local_sizes(const job::ModelOptions& model, std::int64_t tp, std::int64_t tp_rank,
                       std::int64_t vocab_multiple, bool whole_experts) {
  const std::int64_t rows = parallel::local_shape({.logical = {model.vocab},
                                                   .placement = TensorPlacement::shard,
                                                   .segments = {{model.vocab, 1}},
                                                   .pad_to = vocab_multiple},
                                                  tp)[0];
  return {.heads = model.heads / tp,
          .kv_heads = std::max<std::int64_t>(1, model.kv_heads / tp),
          .ffn = model.ffn / tp,
          .expert_ffn = job::expert_ffn(model) / (whole_experts ? 1 : tp),
          .shared_ffn = model.experts.shared_ffn / tp,
          .vocab_rows = rows,
          .first_vocab_row = tp_rank * rows};
}

std::int64_t local_kv_heads(const job::ModelOptions& model, std::int64_t tp) {
  return std::max<std::int64_t>(1, model.kv_heads / tp);
}

bool heads_divide(const job::ModelOptions& model, std::int64_t tp, std::int64_t cp) {
  const std::int64_t kv_heads = local_kv_heads(model, tp);
  return model.heads / tp % cp == 0 && (kv_heads % cp == 0 || cp % kv_heads == 0);
}

std::string tensor_parallel_problem(const job::ModelOptions& model, std::int64_t tp, bool whole_experts) {
  const job::ExpertOptions& e = model.experts;
  // Whole experts may have any width. That of all MLPs is `ffn`.
  const bool all_experts = e.on() && job::expert_layers(model) == model.layers;
  const std::int64_t ffn = whole_experts && all_experts ? 0 : model.ffn,
                     expert_ffn = whole_experts ? 0 : e.ffn;
  const auto splits = [&](std::int64_t over) {
    return over == 1 ||
           (model.heads % over == 0 && ffn % over == 0 && expert_ffn % over == 0 &&
            e.shared_ffn % over == 0 && (model.kv_heads % over == 0 || over % model.kv_heads == 0));
  };
  if (splits(tp)) return "";
  // No model splits over more ranks than it has heads.
  std::int64_t below = std::clamp(tp - 1, std::int64_t{1}, std::max<std::int64_t>(1, model.heads)),
               above = tp + 1;
  while (!splits(below)) --below;
  while (above <= model.heads && above - tp < tp - below && !splits(above)) ++above;
  const std::int64_t nearest = above <= model.heads && above - tp < tp - below ? above : below;
  const std::string over = " over tp " + std::to_string(tp),
                    valid = " (nearest valid: " + std::to_string(nearest) + ")";
  if (model.heads % tp != 0)
    return std::to_string(model.heads) + " heads cannot be split evenly" + over + valid;
  for (const auto& [name, width] :
       {std::pair{"ffn ", ffn}, {"experts.ffn ", expert_ffn}, {"experts.shared_ffn ", e.shared_ffn}})
    if (width % tp != 0) {
      const bool of_experts = !whole_experts && name == std::string(all_experts ? "ffn " : "experts.ffn ");
      return name + std::to_string(width) + " cannot be split evenly" + over + valid +
             (of_experts ? "; parallel.etp: 1 leaves experts whole" : "");
    }
  return std::to_string(model.kv_heads) + " kv_heads can neither be split nor replicated evenly" + over +
         valid;
}

}  // namespace trainerd::core::model
