#pragma once

#include <span>
#include <vector>

#include "core/job/model_options.h"
#include "core/model/param_info.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::model {

/// Adapters (parallel/tensor/adapter.h) of some projections of a merged weight (queries, keys, values; gate,
/// up), stored together.
struct AdapterParams {
  ParamId a = kNoParam;                    ///< [n R, C]: R rows per projection
  ParamId b = kNoParam;                    ///< [rows of those projections, R]
  std::vector<std::size_t> segments = {};  ///< those n projections, by index in the weight
  bool whole = false;                      ///< one adapter for all rows of the weight: n is 1
  bool present() const { return a != kNoParam; }
};

/// A weight and its optional bias.
struct LinearParams {
  ParamId weight = kNoParam;
  ParamId bias = kNoParam;
  AdapterParams adapter = {};
};

/// The weights of latent attention before the output projection.
struct LatentParams {
  /// [Rq + Rkv + R, D]: the queries' latent (optional), the latent of keys and values, the shared key
  /// elements.
  LinearParams down;
  ParamId q_norm = kNoParam;  ///< [Rq]
  ParamId kv_norm = kNoParam;
  LinearParams q;   ///< [H E, Rq], or [H E, D] without a latent of queries
  LinearParams kv;  ///< [H (E - R + Ev), Rkv]: per head the key's own elements, then the value
  bool present() const { return kv.weight != kNoParam; }
};

struct LayerParams {
  /// All linear layers that may have adapters.
  std::vector<const LinearParams*> linears() const {
    return {&qkv, &latent.down, &latent.q, &latent.kv, &attn_out, &up, &down};
  }
  std::int64_t index = 0;     ///< in the model
  job::LayerOptions options;  ///< options of this layer
  LinearParams attn_norm;     ///< none if norms come only after
  LinearParams qkv;           ///< [(H + 2K) E, D]: query heads, key heads, value heads; not with latents
  LatentParams latent;
  ParamId q_norm = kNoParam;
  ParamId k_norm = kNoParam;
  ParamId sinks = kNoParam;     ///< [H]
  LinearParams attn_out;        ///< [D, H E]
  LinearParams attn_post_norm;  ///< none if norms come only before
  LinearParams mlp_norm;
  ParamId router = kNoParam;       ///< [experts, D]; none: a dense MLP
  ParamId logit_bias = kNoParam;   ///< [experts]
  ParamId router_bias = kNoParam;  ///< [experts]
  /// With a gate: [2F, D], gate rows then up rows; gelu: [F, D]. With experts, their matrices by rows, and
  /// their biases likewise.
  LinearParams up;
  LinearParams down;  ///< [D, F]; with experts, their matrices by rows
  /// The MLP beside the experts, which all tokens pass through; and the matrix [1, D] of its factor.
  LinearParams shared_up, shared_down;
  ParamId shared_gate = kNoParam;
  LinearParams mlp_post_norm;
};

/// Ids of the parameters of one chunk. With tied embeddings `head` is an embedding parameter: the one of this
/// rank's first chunk, or a copy.
struct ChunkParams {
  ParamId embedding = kNoParam;
  ParamId positions = kNoParam;
  std::int64_t first_layer = 0;  ///< in the model
  std::vector<LayerParams> layers;
  LinearParams final_norm;
  ParamId head = kNoParam;
};

/// The parameters of all chunks of one rank.
struct DeclaredParams {
  std::vector<ParamInfo> infos;
  std::vector<ChunkParams> chunks;
  /// The tied embedding of a rank that has only one of its two uses: its gradient is summed over both
  /// holders.
  ParamId tied_copy = kNoParam;
};

/// The rank's place among the expert-parallel ranks, each of which has an equal number of each layer's
/// experts.
struct ExpertShare {
  std::int64_t ranks = 1, rank = 0;
  bool apart = false;  ///< parallel::ParallelOptions::experts_apart
};

/// Declares the parameters of a rank's chunks in model order. Names are those of checkpoints: embed.weight,
/// positions.weight, layers.N.{attn_norm,qkv,q_norm,k_norm,sinks,attn_out,attn_post_norm,mlp_norm,
/// qkv_down|kv_down,q_latent_norm,kv_latent_norm,q_up|q,kv_up,
/// router,router_bias,gate_up|up,down,experts.gate_up,experts.down,shared.gate_up,shared.down,shared_gate,mlp_post_norm}.{weight,bias},
/// final_norm.{weight,bias}, head.weight; with adapters also
/// layers.N.{qkv,attn_out,gate_up,down}.{lora_a,lora_b}, and then nothing else is trainable.
/// `microbatch_tokens`: rows of the GEMM weights' activations. With `sequence_parallel` each tp rank
/// normalises its own tokens, so the norms' gradients are partial sums. `vocab_multiple`: the device's
/// (kernels::Target), or kLogicalVocab.
DeclaredParams declare_parameters(const job::ModelOptions& model, std::span<const parallel::ChunkSpan> chunks,
                                  std::int64_t microbatch_tokens, bool sequence_parallel,
                                  std::int64_t vocab_multiple, const ExpertShare& share = {});
/// For parameters as in files: with tp 1 there is no padding.
constexpr std::int64_t kLogicalVocab = 1;

/// Slots that one rank has for the `tokens` tokens of each rank (parallel::ExpertParallel): `capacity` times
/// the mean number of tokens that a uniform router sends from rank to rank, and at most `tokens`. 0 with
/// ExpertComm::all_gather.
std::int64_t expert_slots(const job::ModelOptions& model, std::int64_t tokens, std::int64_t ranks,
                          double capacity, parallel::ExpertComm comm);
/// Rows of experts that a rank has memory for in one microbatch of `tokens` tokens: those of all its tokens'
/// experts. With several expert-parallel ranks as many as any choice of all their tokens can need, or
/// `capacity` times the mean, if that is less and not 0.
std::int64_t expert_rows(const job::ModelOptions& model, std::int64_t tokens, std::int64_t ranks,
                         double capacity);

/// Sizes of one tensor-parallel rank's part of the model.
struct LocalSizes {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t ffn = 0;
  std::int64_t expert_ffn = 0, shared_ffn = 0;
  std::int64_t vocab_rows = 0;       ///< of the embedding and the head, with padding
  std::int64_t first_vocab_row = 0;  ///< in the vocabulary
};
LocalSizes local_sizes(const job::ModelOptions& model, std::int64_t tp, std::int64_t tp_rank,
                       std::int64_t vocab_multiple, bool whole_experts = false);

/// Key and value heads of a tensor-parallel rank.
std::int64_t local_kv_heads(const job::ModelOptions& model, std::int64_t tp);
/// True if `cp` ranks can each take some of a tensor-parallel rank's heads.
bool heads_divide(const job::ModelOptions& model, std::int64_t tp, std::int64_t cp);

/// Why the model cannot be split over tp ranks, but for whole experts; "" if it can.
std::string tensor_parallel_problem(const job::ModelOptions& model, std::int64_t tp, bool whole_experts);

}  // namespace trainerd::core::model
