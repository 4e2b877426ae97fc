#include "core/job/model_options.h"

namespace trainerd::core::job {

ParameterCount count_parameters(const ModelOptions& m) {
  const std::int64_t q = m.heads * m.head_dim;
  const std::int64_t kv = m.kv_heads * m.head_dim;
  const std::int64_t norm = m.norm == Norm::layer ? 2 * m.hidden : m.hidden;  // weight, and LayerNorm's bias
  const std::int64_t up = m.mlp == Mlp::swiglu ? 2 * m.ffn : m.ffn;           // rows of the first MLP matrix

  const std::int64_t attention = m.hidden * (q + 2 * kv) + q * m.hidden;
  const std::int64_t mlp = m.hidden * up + m.ffn * m.hidden;
  std::int64_t small = 2 * norm;
  if (m.linear_bias || m.qkv_bias) small += q + 2 * kv;
  if (m.linear_bias) small += m.hidden + up + m.hidden;
  if (m.qk_norm) small += 2 * m.head_dim;

  const std::int64_t table = m.vocab * m.hidden;
  ParameterCount count;
  count.matmul = m.layers * (attention + mlp) + table;
  count.total = m.layers * (attention + mlp + small) + norm + table;
  if (!m.tie_embeddings) count.total += table;
  if (m.positions == Positions::learned) count.total += m.seq_len * m.hidden;
  return count;
}

double flops_per_token(const ModelOptions& m) {
  const double attention = static_cast<double>(m.layers) * static_cast<double>(m.heads * m.head_dim) *
                           static_cast<double>(m.seq_len);
  return 6.0 * static_cast<double>(count_parameters(m).matmul) + 6.0 * attention;
}

}  // namespace trainerd::core::job
