#pragma once

#include <span>
#include <vector>

#include "core/job/model_options.h"
#include "core/model/param_info.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::model {

/// Adapters (parallel/tensor/adapter.h) of some projections that a weight is made of (queries, keys, values;
/// gate, up), together.
struct AdapterParams {
  ParamId a = kNoParam;                    ///< [n R, C]: of each projection R rows
  ParamId b = kNoParam;                    ///< [rows of those projections, R]
  std::vector<std::size_t> segments = {};  ///< those n projections, by their place in the weight
  bool whole = false;  ///< of all rows of the weight at once: n is 1, whatever projections it is made of
  bool present() const { return a != kNoParam; }
};

/// A weight and its optional bias.
struct LinearParams {
  ParamId weight = kNoParam;
  ParamId bias = kNoParam;
  AdapterParams adapter = {};
};

struct LayerParams {
  std::int64_t index = 0;     ///< in the model
  job::LayerOptions options;  ///< what the layer is
  LinearParams attn_norm;     ///< none where norms come after alone
  LinearParams qkv;           ///< [(H + 2K) E, D]: query heads, key heads, value heads
  ParamId q_norm = kNoParam;
  ParamId k_norm = kNoParam;
  ParamId sinks = kNoParam;     ///< [H]
  LinearParams attn_out;        ///< [D, H E]
  LinearParams attn_post_norm;  ///< none where norms come before alone
  LinearParams mlp_norm;
  LinearParams up;    ///< swiglu and geglu: [2F, D], gate rows then up rows; gelu: [F, D]
  LinearParams down;  ///< [D, F]
  LinearParams mlp_post_norm;
};

/// Ids of the parameters of one chunk. With tied embeddings `head` is an embedding: the chunk's rank's own,
/// or a copy.
struct ChunkParams {
  ParamId embedding = kNoParam;
  ParamId positions = kNoParam;
  std::int64_t first_layer = 0;  ///< of the model
  std::vector<LayerParams> layers;
  LinearParams final_norm;
  ParamId head = kNoParam;
};

/// The parameters of all chunks of one rank.
struct DeclaredParams {
  std::vector<ParamInfo> infos;
  std::vector<ChunkParams> chunks;
  /// The tied embedding of a rank that holds only one of its two uses: its gradient is a sum over both
  /// holders.
  ParamId tied_copy = kNoParam;
};

/// Declares the parameters of a rank's chunks in the order of the model. Names are those of checkpoints:
/// embed.weight, positions.weight,
/// layers.N.{attn_norm,qkv,q_norm,k_norm,sinks,attn_out,attn_post_norm,mlp_norm,gate_up|up,down,mlp_post_norm}.
/// {weight,bias}, final_norm.{weight,bias}, head.weight; of adapters, where the model has them,
/// layers.N.{qkv,attn_out,gate_up,down}.{lora_a,lora_b}. With adapters nothing else is trainable.
/// `microbatch_tokens`: rows of the activations that the GEMM weights will meet; with `sequence_parallel`
/// each tp rank norms its own tokens, and the norms' gradients are summands. `vocab_multiple`: of the device
/// (kernels::Target), or kLogicalVocab.
DeclaredParams declare_parameters(const job::ModelOptions& model, std::span<const parallel::ChunkSpan> chunks,
                                  std::int64_t microbatch_tokens, bool sequence_parallel,
                                  std::int64_t vocab_multiple);
/// For the parameters as files hold them: with tp 1 nothing is padded.
constexpr std::int64_t kLogicalVocab = 1;

/// Sizes of what one tensor-parallel rank computes on.
struct LocalSizes {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab_rows = 0;       ///< of the embedding and the head, padding included
  std::int64_t first_vocab_row = 0;  ///< in the vocabulary
};
LocalSizes local_sizes(const job::ModelOptions& model, std::int64_t tp, std::int64_t tp_rank,
                       std::int64_t vocab_multiple);

/// "" or why the model cannot be split over tp ranks.
std::string tensor_parallel_problem(const job::ModelOptions& model, std::int64_t tp);

}  // namespace trainerd::core::model
