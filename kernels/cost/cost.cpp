#include "kernels/cost/cost.h"

namespace trainerd::kernels {
namespace {

double sum_bytes(std::initializer_list<const Tensor*> tensors) {
  double bytes = 0;
  for (const Tensor* t : tensors) bytes += static_cast<double>(t->bytes());
  return bytes;
}

/// Reads as well as writes when a result is added to.
double written(const Tensor& t, WriteMode mode) {
  return (mode == WriteMode::accumulate ? 2.0 : 1.0) * static_cast<double>(t.bytes());
}

double gemm_flops(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

/// Score entries per head that the mask leaves, for sequences of equal length: s^2 / 2 each when causal, the
/// convention of `flops_per_token`.
double score_entries(std::int64_t tokens, std::int64_t sequences, MaskKind mask) {
  if (sequences == 0) return 0;
  const double t = static_cast<double>(tokens), full = t * t / static_cast<double>(sequences);
  return mask == MaskKind::causal ? full / 2 : full;
}

double numel(const Tensor& t) { return static_cast<double>(t.numel()); }

}  // namespace

Cost cost(const PrepareWeight& a, const Target&) { return {0, sum_bytes({&a.plain_NC, &a.out})}; }

Cost cost(const LinearFprop& a, const Target&) {
  return {gemm_flops(a.y_TN.size(0), a.y_TN.size(1), a.x_TC.data.size(1)),
          sum_bytes({&a.x_TC.data, &a.weight.plain_NC, &a.bias_N, &a.addend_TN, &a.y_TN})};
}

Cost cost(const LinearDgrad& a, const Target&) {
  return {gemm_flops(a.dx_TC.size(0), a.dx_TC.size(1), a.dy_TN.data.size(1)),
          sum_bytes({&a.dy_TN.data, &a.weight.plain_NC}) + written(a.dx_TC, a.mode)};
}

Cost cost(const LinearWgrad& a, const Target&) {
  return {
      gemm_flops(a.dweight_NC.size(0), a.dweight_NC.size(1), a.dy_TN.data.size(0)),
      sum_bytes({&a.dy_TN.data, &a.x_TC.data}) + written(a.dweight_NC, a.mode) + written(a.dbias_N, a.mode)};
}

Cost cost(const LinearSwiglu& a, const Target&) {
  return {gemm_flops(a.gate_up_T2F.size(0), a.gate_up_T2F.size(1), a.x_TC.data.size(1)) + 5 * numel(a.act_TF),
          sum_bytes({&a.x_TC.data, &a.weight.plain_NC, &a.gate_up_T2F, &a.act_TF})};
}

Cost cost(const LinearDgradSwiglu& a, const Target&) {
  return {gemm_flops(a.dy_TD.data.size(0), a.dy_TD.data.size(1), a.weight.plain_NC.size(1)) +
              5 * numel(a.gate_up_T2F),
          sum_bytes({&a.dy_TD.data, &a.weight.plain_NC, &a.gate_up_T2F, &a.dgate_up_T2F, &a.act_TF})};
}

Cost cost(const GluForward& a, const Target&) {
  return {5 * numel(a.act_TF), sum_bytes({&a.gate_up_T2F, &a.act_TF})};
}
Cost cost(const GluBackward& a, const Target&) {
  return {5 * numel(a.gate_up_T2F), sum_bytes({&a.dact_TF, &a.gate_up_T2F, &a.dgate_up_T2F, &a.act_TF})};
}
Cost cost(const GeluForward& a, const Target&) {
  return {10 * numel(a.x_TF), sum_bytes({&a.x_TF, &a.act_TF})};
}
Cost cost(const GeluBackward& a, const Target&) {
  return {15 * numel(a.x_TF), sum_bytes({&a.dact_TF, &a.x_TF, &a.dx_TF})};
}

Cost cost(const EmbeddingForward& a, const Target&) {
  // Each token reads its own row, however large the table.
  const double tables = a.positions_table_SD.defined() ? 2.0 : 1.0;
  return {(tables - 1) * numel(a.out_TD), sum_bytes({&a.tokens_T, &a.positions_T, &a.out_TD}) * tables};
}

Cost cost(const EmbeddingBackward& a, const Target&) {
  return {numel(a.dout_TD), sum_bytes({&a.rows_T, &a.dout_TD}) + written(a.dtable_VD, a.mode)};
}

Cost cost(const AddNormForward& a, const Target&) {
  const Tensor sum = a.delta_TD.defined() ? a.sum_TD : Tensor{};
  return {6 * numel(a.residual_TD),
          sum_bytes({&a.residual_TD, &a.delta_TD, &sum, &a.y_TD, &a.mean_T, &a.rstd_T})};
}

Cost cost(const AddNormBackward& a, const Target&) {
  return {10 * numel(a.dx_TD), sum_bytes({&a.dy_TD, &a.dsum_TD, &a.sum_TD, &a.mean_T, &a.rstd_T, &a.dx_TD})};
}

Cost cost(const RopeTable& a, const Target&) {
  return {numel(a.table_SE), static_cast<double>(a.table_SE.bytes())};
}

Cost cost(const QkNormRopeForward& a, const Target&) {
  return {6 * numel(a.qkv_in), sum_bytes({&a.qkv_in, &a.qkv_out, &a.positions_T})};
}
Cost cost(const QkNormRopeBackward& a, const Target&) {
  return {6 * numel(a.dqkv),
          2 * sum_bytes({&a.dqkv}) + (a.q_weight_E.defined() ? sum_bytes({&a.qkv_in}) : 0.0)};
}

Cost cost(const AttentionForward& a, const Target&) {
  const double entries =
      score_entries(a.out_THE.size(0), a.sequences, a.mask) * static_cast<double>(a.heads.heads);
  return {4 * entries * static_cast<double>(a.heads.head_size), sum_bytes({&a.qkv, &a.out_THE, &a.lse_HT})};
}

Cost cost(const AttentionBackward& a, const Target&) {
  // Five products against the forward's two: the scores are made again.
  const double entries =
      score_entries(a.out_THE.size(0), a.sequences, a.mask) * static_cast<double>(a.heads.heads);
  return {10 * entries * static_cast<double>(a.heads.head_size),
          sum_bytes({&a.qkv, &a.out_THE, &a.lse_HT, &a.dout_THE, &a.dqkv})};
}

Cost cost(const CeStats& a, const Target&) {
  return {4 * numel(a.logits_TV),
          sum_bytes({&a.logits_TV, &a.targets_T, &a.max_T, &a.sum_exp_T, &a.target_logit_T})};
}
Cost cost(const CeRescale& a, const Target&) {
  return {2 * numel(a.max_T), sum_bytes({&a.max_local_T, &a.max_T}) + 2 * sum_bytes({&a.sum_exp_T})};
}
Cost cost(const CeFinish& a, const Target&) {
  if (a.want == CeFinish::Want::loss)
    return {4 * numel(a.loss_T), sum_bytes({&a.loss_T, &a.max_T, &a.sum_exp_T})};
  return {4 * numel(a.logits_TV), 2 * sum_bytes({&a.logits_TV}) + sum_bytes({&a.loss_T, &a.targets_T})};
}

Cost cost(const Add& a, const Target&) { return {numel(a.out), sum_bytes({&a.a, &a.b, &a.out})}; }
Cost cost(const Scale& a, const Target&) { return {numel(a.x), sum_bytes({&a.x, &a.out})}; }
Cost cost(const Cast& a, const Target&) { return {0, sum_bytes({&a.in, &a.out})}; }
Cost cost(const BlockSquareSums& a, const Target&) { return {2 * numel(a.x), sum_bytes({&a.x, &a.sums})}; }
Cost cost(const TotalSquareSum& a, const Target&) { return {numel(a.sums), sum_bytes({&a.sums})}; }
Cost cost(const OrderedSum& a, const Target&) { return {numel(a.x), sum_bytes({&a.x, &a.out})}; }
Cost cost(const TensorHash& a, const Target&) { return {numel(a.x), sum_bytes({&a.x, &a.out})}; }
Cost cost(const StepControl& a, const Target&) { return {2, sum_bytes({&a.square_sum, &a.loss, &a.values})}; }

Cost cost(const AdamwUpdate& a, const Target&) {
  // Read: gradient, master, both moments. Written: master, both moments, parameters.
  return {14 * numel(a.master),
          sum_bytes({&a.grads, &a.params}) + 2 * sum_bytes({&a.master, &a.moment1, &a.moment2})};
}

Cost cost(const MomentumUpdate& a, const Target&) {
  return {6 * numel(a.direction), sum_bytes({&a.grads, &a.direction}) + 2 * sum_bytes({&a.momentum})};
}
Cost cost(const CopyBoxes& a, const Target&) {
  double elements = 0;
  for (const MatrixBox& box : a.boxes) elements += static_cast<double>(box.rows * box.columns);
  return {0, 8 * elements};
}
Cost cost(const Normalise& a, const Target&) { return {3 * numel(a.x), 3 * sum_bytes({&a.x})}; }
Cost cost(const DirectionUpdate& a, const Target&) {
  return {4 * numel(a.direction), sum_bytes({&a.direction, &a.params}) + 2 * sum_bytes({&a.master})};
}

Cost cost(const InitNormal& a, const Target&) { return {40 * numel(a.x), sum_bytes({&a.x})}; }

}  // namespace trainerd::kernels
