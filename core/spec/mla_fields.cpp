#include "core/spec/field_table.h"

namespace trainerd::core::spec {

void add_mla(FieldTable& t, job::ModelOptions& m) {
  constexpr double kMostRank = 1 << 20, kMostHeadDim = 1 << 16;  // as of model.hidden and model.head_dim
  job::MlaOptions& a = m.mla;
  const std::string none = "attention has no latents without mla.kv_lora_rank";
  const auto of = [&](const char* path, std::int64_t& value, const char* meaning, double most) -> Field& {
    return t.add(path, &value, meaning).between(0, most);
  };
  Field& rank =
      of("model.mla.kv_lora_rank", a.kv_lora_rank,
         "multi-head latent attention: each token's keys and values are made from a latent of this size "
         "(DeepSeek-V3: 512); 0: attention without latents",
         kMostRank);
  rank.exclusions.push_back({{rank.path, Says::not_default},
                             {{"model.positions", Says::word, "learned"}},
                             "needs positions: rope, and the job has positions: learned"});
  rank.not_with("model.qk_norm", "has norms of its latents in place of qk_norm: leave qk_norm out");
  for (const char* biases : {"model.bias", "model.attention_bias", "model.qkv_bias"})
    rank.not_with(biases, "has projections without biases: leave the key for biases out");
  of("model.mla.q_lora_rank", a.q_lora_rank,
     "size of the latent that queries are made from (DeepSeek-V3: 1536); 0: they have none", kMostRank)
      .idle_if(!a.on(), none);
  of("model.mla.qk_nope_head_dim", a.qk_nope_head_dim,
     "elements of a query or key head that are not rotated (DeepSeek-V3: 128); required with `kv_lora_rank`",
     kMostHeadDim)
      .idle_if(!a.on(), none);
  of("model.mla.qk_rope_head_dim", a.qk_rope_head_dim,
     "elements that are rotated, in a key the same for all heads (DeepSeek-V3: 64); required, even",
     kMostHeadDim)
      .idle_if(!a.on(), none);
  of("model.mla.v_head_dim", a.v_head_dim, "elements of a value head (DeepSeek-V3: 128); required",
     kMostHeadDim)
      .idle_if(!a.on(), none);
}

}  // namespace trainerd::core::spec
