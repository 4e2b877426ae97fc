#include "kernels/ops/latent_heads.h"

namespace trainerd::kernels {

void check_latent_heads(const HeadGeometry& heads, const Tensor& q_TC, const Tensor& kv_TC,
                        const Tensor& k_rope_TR, const Tensor& positions_T, const Tensor& rope_table_SR,
                        const Tensor& qkv) {
  const std::int64_t rotated = rotated_elements(rope_table_SR, heads), tokens = qkv.size(0);
  base::check(rotated > 0 && heads.heads == heads.kv_heads,
              "latent heads: with rotated elements, and a key head for each query head");
  base::check(
      q_TC.shape == Shape{tokens, heads.query_columns()} && k_rope_TR.shape == Shape{tokens, rotated} &&
          kv_TC.shape == Shape{tokens, heads.heads * (heads.head_size - rotated) + heads.value_columns()} &&
          qkv.shape == Shape{tokens, heads.columns()},
      "latent heads: columns of the tensors");
  base::check(positions_T.dtype == DType::i32 && positions_T.numel() == tokens,
              "latent heads: a position for each token");
  base::check(is_float(qkv.dtype) && q_TC.dtype == qkv.dtype && kv_TC.dtype == qkv.dtype &&
                  k_rope_TR.dtype == qkv.dtype,
              "latent heads: one dtype throughout");
}

}  // namespace trainerd::kernels
