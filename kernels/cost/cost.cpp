#include "kernels/cost/cost.h"

#include <algorithm>

#include "kernels/cuda/launch/attention_problem.h"
#include "kernels/cuda/launch/loss_launch.h"

namespace trainerd::kernels {
namespace {

double sum_bytes(std::initializer_list<const Tensor*> tensors) {
  double bytes = 0;
  for (const Tensor* t : tensors) bytes += static_cast<double>(t->bytes());
  return bytes;
}

/// Bytes of writing a result. Accumulating also reads it.
double written(const Tensor& t, WriteMode mode) {
  return (mode == WriteMode::accumulate ? 2.0 : 1.0) * static_cast<double>(t.bytes());
}

double gemm_flops(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

/// The same for heads, without gaps between them.
double written(const HeadView& x, WriteMode mode) {
  return (mode == WriteMode::accumulate ? 2.0 : 1.0) * static_cast<double>(x.bytes());
}

/// Area below the diagonal shifted left by `offset`, within `queries` x `keys`: the integral of min(max(x +
/// offset, 0), keys) over x from 0 to `queries`.
double area_below(double queries, double keys, double offset) {
  const auto ramp = [&](double x) {
    return x <= 0 ? 0 : x <= keys ? x * x / 2 : keys * keys / 2 + keys * (x - keys);
  };
  return ramp(queries + offset) - ramp(offset);
}

/// Unmasked score entries per head: the area of the mask, s^2 / 2 for a whole causal sequence of s, as in
/// `flops_per_token`. Entries of blocks therefore sum to those of the whole. Rows count as sequences of the
/// maximum length, which overestimates shorter documents. If positions are only known on the device
/// (`first_B`), all keys count as before all queries, which is the upper bound, unless `first` is one.
double score_entries(const AttentionBlock& b, std::int64_t rows) {
  const double queries = static_cast<double>(b.queries.max_seqlen),
               keys = static_cast<double>(b.keys.max_seqlen), window = static_cast<double>(b.window);
  if (b.queries.max_seqlen == 0) return 0;
  double entries = queries * keys;
  if ((b.queries.first_B.defined() && !b.queries.first_bounds) || b.keys.first_B.defined()) {
    if (b.window > 0) entries = queries * std::min(keys, window);
  } else if (b.mask == MaskKind::causal) {
    const double offset = static_cast<double>(b.queries.first - b.keys.first);
    entries = area_below(queries, keys, offset);
    if (b.window > 0) entries -= area_below(queries, keys, offset - window);
  }
  return entries * static_cast<double>(rows) / queries;
}

template <class Args>
double attention_flops(const Args& a, const AttentionProducts& products) {
  const HeadGeometry& heads = a.block.heads;
  return 2 * score_entries(a.block, a.q_THE.rows) * static_cast<double>(heads.heads) *
         (products.keys * static_cast<double>(heads.head_size) +
          products.values * static_cast<double>(heads.values_size()));
}

/// Bytes that both passes read.
template <class Args>
double attention_bytes(const Args& a) {
  return static_cast<double>(a.q_THE.bytes() + a.k_TKE.bytes() + a.v_TKE.bytes());
}

template <class Args>
OpClass classify(const Args& a, const Target& target) {
  OpClass what = op_class(a);
  if constexpr (requires { cuda::choose_attention(a, target); })
    if (target.kind == DeviceKind::cuda) {
      const cuda::AttentionChoice choice = cuda::choose_attention(a, target);
      what.kernel = choice.kernel, what.limited = choice.limited;
    }
  return what;
}

double numel(const Tensor& t) { return static_cast<double>(t.numel()); }

/// Bytes that cross a device's link to its host, if they are in host memory.
double on_host(const Target& target, bool there, double bytes) {
  return there && target.kind == DeviceKind::cuda ? bytes : 0;
}

}  // namespace

#define TRAINERD_OPERATOR(name, Args, cuda) \
  OpClass op_class_on(const Args& a, const Target& target) { return classify(a, target); }
#include "kernels/ops/operators.def"

Cost cost(const PrepareWeight& a, const Target&) { return {0, sum_bytes({&a.plain_NC, &a.out})}; }

Cost cost(const LinearFprop& a, const Target&) {
  return {gemm_flops(a.y_TN.size(0), a.y_TN.size(1), a.x_TC.size(1)),
          sum_bytes({&a.x_TC, &a.weight.plain_NC, &a.bias_N, &a.addend_TN, &a.y_TN})};
}

Cost cost(const LinearDgrad& a, const Target&) {
  return {gemm_flops(a.dx_TC.size(0), a.dx_TC.size(1), a.dy_TN.size(1)),
          sum_bytes({&a.dy_TN, &a.weight.plain_NC}) + written(a.dx_TC, a.mode)};
}

Cost cost(const LinearWgrad& a, const Target&) {
  return {gemm_flops(a.dweight_NC.size(0), a.dweight_NC.size(1), a.dy_TN.size(0)),
          sum_bytes({&a.dy_TN, &a.x_TC}) + written(a.dweight_NC, a.mode) + written(a.dbias_N, a.mode)};
}

Cost cost(const LinearSwiglu& a, const Target&) {
  return {gemm_flops(a.gate_up_T2F.size(0), a.gate_up_T2F.size(1), a.x_TC.size(1)) + 5 * numel(a.act_TF),
          sum_bytes({&a.x_TC, &a.weight.plain_NC, &a.gate_up_T2F, &a.act_TF})};
}

Cost cost(const LinearDgradSwiglu& a, const Target&) {
  return {gemm_flops(a.dy_TD.size(0), a.dy_TD.size(1), a.weight.plain_NC.size(1)) + 5 * numel(a.gate_up_T2F),
          sum_bytes({&a.dy_TD, &a.weight.plain_NC, &a.gate_up_T2F, &a.dgate_up_T2F, &a.act_TF})};
}

/// Part of the rows that are in use.
template <class Args>
double part_in_use(const Args& a, const Tensor& rows) {
  return rows.size(0) == 0 ? 0
                           : static_cast<double>(rows_in_use(a, rows)) / static_cast<double>(rows.size(0));
}

Cost cost(const GluForward& a, const Target&) {
  const double part = part_in_use(a, a.act_TF);
  return {part * 5 * numel(a.act_TF), part * sum_bytes({&a.gate_up_T2F, &a.act_TF})};
}
Cost cost(const GluBackward& a, const Target&) {
  const double part = part_in_use(a, a.dact_TF);
  return {part * 5 * numel(a.gate_up_T2F),
          part * sum_bytes({&a.dact_TF, &a.gate_up_T2F, &a.dgate_up_T2F, &a.act_TF})};
}
Cost cost(const GeluForward& a, const Target&) {
  return {10 * numel(a.x_TF), sum_bytes({&a.x_TF, &a.act_TF})};
}
Cost cost(const GeluBackward& a, const Target&) {
  return {15 * numel(a.x_TF), sum_bytes({&a.dact_TF, &a.x_TF, &a.dx_TF})};
}

Cost cost(const CheckIds& a, const Target&) { return {0, sum_bytes({&a.tokens_T, &a.targets_T})}; }
Cost cost(const EmbeddingForward& a, const Target&) {
  // Each token reads one row, however large the table is.
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
  return {numel(a.table_SR), static_cast<double>(a.table_SR.bytes())};
}

/// Reads queries and keys of the input and of the gradient, but not values.
Cost cost(const QkNormSums& a, const Target&) {
  const HeadGeometry& h = a.heads;
  const double read =
      static_cast<double>(h.query_columns() + h.key_columns()) / static_cast<double>(h.columns());
  return {(a.dqkv.defined() ? 6 : 2) * read * numel(a.qkv_in),
          read * sum_bytes({&a.qkv_in, &a.dqkv}) + sum_bytes({&a.sums_T2})};
}
Cost cost(const QkNormRopeForward& a, const Target&) {
  return {6 * numel(a.qkv_in), sum_bytes({&a.qkv_in, &a.qkv_out, &a.positions_T})};
}
Cost cost(const QkNormRopeBackward& a, const Target&) {
  return {6 * numel(a.dqkv),
          2 * sum_bytes({&a.dqkv}) + (a.q_weight_E.defined() ? sum_bytes({&a.qkv_in}) : 0.0)};
}

Cost cost(const LatentHeadsForward& a, const Target&) {
  return {6 * numel(a.qkv), sum_bytes({&a.q_TC, &a.kv_TC, &a.k_rope_TR, &a.qkv})};
}
Cost cost(const LatentHeadsBackward& a, const Target&) {
  return {6 * numel(a.dqkv), sum_bytes({&a.dqkv, &a.dq_TC, &a.dkv_TC, &a.dk_rope_TR})};
}

Cost cost(const AttentionForward& a, const Target&) {
  return {attention_flops(a, {1, 1}),
          attention_bytes(a) + written(a.out_THE, a.mode) + written(a.lse_HT, a.mode)};
}

Cost cost(const AttentionBackward& a, const Target& target) {
  // Five products, where the forward has two: the scores are recomputed. Our own kernels on a CUDA device
  // compute the scores and the gradients of the weights twice, so that every sum has one owner.
  const AttentionKernel kernel = op_class_on(a, target).kernel;
  const double out = static_cast<double>(a.out_THE.bytes()), dout = static_cast<double>(a.dout_THE.bytes()),
               row = sum_bytes({&a.lse_HT}), inputs = attention_bytes(a) + dout + row,
               gradients = written(a.dq_THE, a.dq_mode) + written(a.dk_TKE, a.dkv_mode) +
                           written(a.dv_TKE, a.dkv_mode);
  // One kernel computes the row sums of dO O. The kernel for dK and dV and the one for dQ each read them and
  // all inputs.
  if (kernel == AttentionKernel::tensor_cores || kernel == AttentionKernel::plain)
    return {attention_flops(a, kOwnBackwardProducts), out + dout + row + 2 * (inputs + row) + gradients};
  const double workspace =
      kernel == AttentionKernel::library ? 2 * static_cast<double>(cuda::backward_workspace(a, target)) : 0;
  return {attention_flops(a, kBackwardProducts), inputs + out + gradients + workspace};
}

Cost cost(const AttentionSinkForward& a, const Target&) {
  const auto out = static_cast<double>(a.out_THE.bytes());
  return {out / static_cast<double>(size_of(a.out_THE.dtype)), 2 * out + 2 * sum_bytes({&a.lse_HT})};
}
Cost cost(const AttentionSinkBackward& a, const Target&) {
  const auto out = static_cast<double>(a.out_THE.bytes());
  return {2 * out / static_cast<double>(size_of(a.out_THE.dtype)), 2 * out + sum_bytes({&a.lse_HT})};
}

Cost cost(const CeStats& a, const Target&) {
  return {(a.label_smoothing > 0 ? 5 : 4) * numel(a.logits_TV),
          sum_bytes({&a.logits_TV, &a.targets_T, &a.max_T, &a.sum_exp_T, &a.target_logit_T})};
}
Cost cost(const CeRescale& a, const Target&) {
  return {2 * numel(a.max_T), sum_bytes({&a.max_local_T, &a.max_T}) + 2 * sum_bytes({&a.sum_exp_T})};
}
Cost cost(const CeFinish& a, const Target&) {
  if (a.want == CeFinish::Want::loss)
    return {4 * numel(a.loss_T), sum_bytes({&a.loss_T, &a.z_loss_T, &a.max_T, &a.sum_exp_T})};
  return {(a.label_smoothing > 0 ? 5 : 4) * numel(a.logits_TV),
          2 * sum_bytes({&a.logits_TV}) + sum_bytes({&a.loss_T, &a.z_loss_T, &a.targets_T})};
}

Cost cost(const CeLoss& a, const Target& target) {
  const Cost stats = cost(stats_of(a), target), finish = cost(finish_of(a), target);
  const bool once =
      target.kind == DeviceKind::cuda && cuda::LossRow(a.logits_TV.size(1), a.logits_TV.dtype, target).held;
  return {stats.flops + finish.flops, stats.bytes + finish.bytes - (once ? sum_bytes({&a.logits_TV}) : 0)};
}

Cost cost(const PreferenceLoss& a, const Target&) {
  return {4 * numel(a.loss_T), sum_bytes({&a.loss_T, &a.loss_weight_T, &a.reference_P2, &a.logps_P2}) +
                                   2 * sum_bytes({&a.weight_T})};
}

Cost cost(const Add& a, const Target&) { return {numel(a.out), sum_bytes({&a.a, &a.b, &a.out})}; }
Cost cost(const Scale& a, const Target&) { return {numel(a.x), sum_bytes({&a.x, &a.out})}; }
Cost cost(const Cast& a, const Target&) { return {0, sum_bytes({&a.in, &a.out})}; }
Cost cost(const CopyRows& a, const Target&) {
  const auto copied = static_cast<double>(a.in.size(0) * a.columns);
  return {0, copied * static_cast<double>(size_of(a.in.dtype) + size_of(a.out.dtype))};
}
Cost cost(const Dropout& a, const Target&) { return {8 * numel(a.x), sum_bytes({&a.x, &a.out})}; }
Cost cost(const SumParts& a, const Target&) {
  return {numel(a.x), sum_bytes({&a.x}) + written(a.out, a.mode)};
}

Cost cost(const RouteForward& a, const Target&) {
  return {4 * numel(a.logits_TE), sum_bytes({&a.logits_TE, &a.probs_TE, &a.expert_TK, &a.weight_TK})};
}
Cost cost(const RouteBackward& a, const Target&) {
  return {4 * numel(a.dlogits_TE), sum_bytes({&a.probs_TE, &a.expert_TK, &a.dweight_TK, &a.dlogits_TE})};
}
Cost cost(const CountExperts& a, const Target&) { return {0, sum_bytes({&a.expert_TK, &a.count_BE})}; }
/// A byte of the experts' numbers per pass; each pass reads and writes an expert and a copy.
Cost cost(const SortExperts& a, const Target&) { return {0, 6 * sum_bytes({&a.expert_TK})}; }
Cost cost(const GatherRows& a, const Target&) {
  return {0, part_in_use(a, a.to_RD) * (sum_bytes({&a.source_R}) + 2 * sum_bytes({&a.to_RD}))};
}
Cost cost(const PlaceTokens& a, const Target&) {
  // Each rank's slots are counted by themselves.
  return {0, static_cast<double>(a.source_NS.size(0)) * sum_bytes({&a.expert_TK}) +
                 sum_bytes({&a.slot_TK, &a.source_NS})};
}
Cost cost(const SlotChoices& a, const Target&) {
  return {0, sum_bytes({&a.source_NS}) + 2 * sum_bytes({&a.expert_RK, &a.weight_RK})};
}
Cost cost(const SlotWeights& a, const Target&) {
  return {0, sum_bytes({&a.slot_TK}) + 2 * sum_bytes({&a.weight_TK})};
}
Cost cost(const CombineRows& a, const Target&) {
  const double part = part_in_use(a, a.from_RD);
  return {part * 2 * numel(a.from_RD),
          part * sum_bytes({&a.from_RD}) + sum_bytes({&a.row_TK, &a.weight_TK, &a.to_TD})};
}
Cost cost(const WeighRows& a, const Target&) {
  const double part = part_in_use(a, a.act_RF);
  return {part * 4 * numel(a.act_RF),
          part * (2 * sum_bytes({&a.dact_RF, &a.act_RF}) + sum_bytes({&a.source_R, &a.dweight_TK}))};
}
Cost cost(const AddExpertBias& a, const Target&) {
  const double part = part_in_use(a, a.y_RN);
  return {part * numel(a.y_RN), part * 2 * sum_bytes({&a.y_RN}) + sum_bytes({&a.bias_EN})};
}
Cost cost(const ExpertBiasBackward& a, const Target&) {
  const double part = part_in_use(a, a.dy_RN),
               reads = (a.dbias_EN.defined() ? 1 : 0) + (a.bias_EN.defined() ? 1 : 0);
  return {part * 2 * reads * numel(a.dy_RN),
          part * (reads * sum_bytes({&a.dy_RN}) + sum_bytes({&a.source_R})) +
              (a.mode == WriteMode::accumulate ? 2 : 1) * sum_bytes({&a.dbias_EN})};
}
Cost cost(const ExpertFprop& a, const Target&) {
  return {gemm_flops(rows_in_use(a, a.y_RN), a.y_RN.size(1), a.x_RC.size(1)),
          part_in_use(a, a.y_RN) * sum_bytes({&a.x_RC, &a.y_RN}) + sum_bytes({&a.weight_NC})};
}
Cost cost(const ExpertDgrad& a, const Target&) {
  return {gemm_flops(rows_in_use(a, a.dy_RN), a.dy_RN.size(1), a.dx_RC.size(1)),
          part_in_use(a, a.dy_RN) * sum_bytes({&a.dy_RN, &a.dx_RC}) + sum_bytes({&a.weight_NC})};
}
Cost cost(const ExpertWgrad& a, const Target&) {
  return {gemm_flops(rows_in_use(a, a.dy_RN), a.dy_RN.size(1), a.x_RC.size(1)),
          part_in_use(a, a.dy_RN) * sum_bytes({&a.dy_RN, &a.x_RC}) + written(a.dweight_NC, a.mode)};
}

Cost cost(const BlockSquareSums& a, const Target& t) {
  return {2 * numel(a.x), sum_bytes({&a.x, &a.sums}), on_host(t, a.host, sum_bytes({&a.x}))};
}
Cost cost(const TotalSquareSum& a, const Target&) { return {numel(a.sums), sum_bytes({&a.sums})}; }
Cost cost(const GroupSquareSums& a, const Target&) {
  return {numel(a.sums), sum_bytes({&a.sums, &a.totals})};
}
Cost cost(const OrderedSum& a, const Target&) { return {numel(a.x), sum_bytes({&a.x, &a.out})}; }
Cost cost(const TensorHash& a, const Target& t) {
  return {numel(a.x), sum_bytes({&a.x, &a.out}), on_host(t, a.host, sum_bytes({&a.x}))};
}
Cost cost(const StepControl& a, const Target&) {
  return {2, sum_bytes({&a.square_sum, &a.loss, &a.weight, &a.values})};
}

Cost cost(const ParamUpdate& a, const Target& t) {
  // Read: gradient, master, moments. Written: master, moments, parameters.
  const double master = 2 * sum_bytes({&a.master}), moments = 2 * sum_bytes({&a.moment1, &a.moment2});
  const double flops = a.rule == UpdateRule::adamw ? 14 : a.rule == UpdateRule::lion ? 9 : 6;
  return {flops * numel(a.master), sum_bytes({&a.grads, &a.params}) + master + moments,
          on_host(t, a.host_grads, sum_bytes({&a.grads})) + on_host(t, a.host_master, master) +
              on_host(t, a.host_moments, moments) + on_host(t, a.host_params, sum_bytes({&a.params}))};
}

Cost cost(const AverageUpdate& a, const Target& t) {
  const double weights = sum_bytes({&a.weights}), average = 2 * sum_bytes({&a.average});
  return {3 * numel(a.average), weights + average,
          on_host(t, a.host_weights, weights) + on_host(t, a.host_average, average)};
}

Cost cost(const LossScaleUpdate& a, const Target&) {
  return {1, 2 * sum_bytes({&a.state}) + sum_bytes({&a.control})};
}
Cost cost(const ExpertBiasUpdate& a, const Target&) {
  return {3 * numel(a.bias_E), sum_bytes({&a.count_E}) + 2 * sum_bytes({&a.bias_E})};
}

Cost cost(const MomentumUpdate& a, const Target& t) {
  const double state = 2 * sum_bytes({&a.momentum});
  return {6 * numel(a.direction), sum_bytes({&a.grads, &a.direction}) + state,
          on_host(t, a.host_grads, sum_bytes({&a.grads})) + on_host(t, a.host_momentum, state)};
}
Cost cost(const CopyBoxes& a, const Target&) {
  double elements = 0;
  for (const MatrixBox& box : a.boxes) elements += static_cast<double>(box.rows * box.columns);
  return {0, 8 * elements};
}
Cost cost(const Normalise& a, const Target&) { return {3 * numel(a.x), 3 * sum_bytes({&a.x})}; }
Cost cost(const DirectionUpdate& a, const Target& t) {
  const double state = 2 * sum_bytes({&a.master});
  return {4 * numel(a.direction), sum_bytes({&a.direction, &a.params}) + state,
          on_host(t, a.host_master, state) + on_host(t, a.host_params, sum_bytes({&a.params}))};
}

Cost cost(const InitNormal& a, const Target&) { return {40 * numel(a.x), sum_bytes({&a.x})}; }

}  // namespace trainerd::kernels
