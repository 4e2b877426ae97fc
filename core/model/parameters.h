#pragma once

#include <vector>

#include "core/model/options.h"
#include "core/model/param_store.h"
#include "parallel/layout.h"

namespace trainerd::core {

/// A weight and its optional bias.
struct LinearParams {
  ParamId weight = kNoParam;
  ParamId bias = kNoParam;
};

struct LayerParams {
  LinearParams attn_norm;
  LinearParams qkv;  ///< [(H + 2K) E, D]: query heads, key heads, value heads
  ParamId q_norm = kNoParam;
  ParamId k_norm = kNoParam;
  LinearParams attn_out;  ///< [D, H E]
  LinearParams mlp_norm;
  LinearParams up;    ///< swiglu: [2F, D], gate rows then up rows; gelu: [F, D]
  LinearParams down;  ///< [D, F]
};

/// Ids of the parameters of one chunk. With tied embeddings `head` is `embedding`.
struct ChunkParams {
  ParamId embedding = kNoParam;
  ParamId positions = kNoParam;
  std::vector<LayerParams> layers;
  LinearParams final_norm;
  ParamId head = kNoParam;
};

/// Declares the parameters of a chunk in the order of the model, appending to `infos`. Names are those of checkpoints:
/// embed.weight, positions.weight, layers.N.{attn_norm,qkv,q_norm,k_norm,attn_out,mlp_norm,gate_up|up,down}.{weight,bias},
/// final_norm.{weight,bias}, head.weight. `microbatch_tokens` tells the GEMM weights what they will meet.
ChunkParams declare_parameters(const ModelOptions& model, const parallel::StageSpan& span, std::int64_t microbatch_tokens,
                               std::vector<ParamInfo>& infos);

}  // namespace trainerd::core
