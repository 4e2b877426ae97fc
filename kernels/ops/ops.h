#pragma once

// The arguments of every operator: one plain struct each, with named tensors. An optional tensor is one that may be
// undefined (`Tensor::defined()` false). "Activation dtype" is f32 or bf16, the same for all activations of one call.
// Letters: T tokens, D hidden, H query heads, K key/value heads, E head size, F ffn, V vocabulary rows held here,
// N and C output and input features of a linear layer. Statistics (mean, rstd, lse, max, sum) are f32.
// Parameters' gradients are f32 or bf16 and are written by `WriteMode`; activations' gradients are assigned unless said.

#include <cstdint>
#include <span>

#include "kernels/tensor/tensor.h"

namespace trainerd::kernels {

/// Whether an output is overwritten or added to.
enum class WriteMode : std::uint8_t { assign, accumulate };

/// How a GEMM operand is scaled. Only `none` exists until a low-precision recipe does.
enum class ScaleMode : std::uint8_t { none };

/// One GEMM input.
struct Operand {
  Tensor data;
  ScaleMode scale_mode = ScaleMode::none;
  Tensor scale;

  Operand() = default;
  Operand(const Tensor& tensor) : data(tensor) {}  // NOLINT(google-explicit-constructor): a plain tensor is an operand
};

/// The GEMM that a prepared form serves.
enum class GemmRole : std::uint8_t { fprop, dgrad, wgrad };

/// A linear layer's weight: its plain form, and for one GEMM role the backend's own form (opaque bytes, may be absent).
struct Weight {
  Tensor plain_NC;
  Tensor prepared;
};

// ---- GEMM, by role ---------------------------------------------------------------------------------------------

/// Builds `out` (uint8, `Backend::prepared_bytes` long) from the plain weight.
struct PrepareWeight {
  Tensor plain_NC;
  GemmRole role = GemmRole::fprop;
  std::int64_t tokens = 0;  ///< rows of the activation it will most often meet
  Tensor out;
};

/// y = x w^T (+ bias) (+ addend). `addend_TN` may be `y_TN`.
struct LinearFprop {
  Operand x_TC;
  Weight weight;
  Tensor bias_N;     ///< optional
  Tensor addend_TN;  ///< optional
  Tensor y_TN;
};

/// dx = dy w.
struct LinearDgrad {
  Operand dy_TN;
  Weight weight;
  Tensor dx_TC;
  WriteMode mode = WriteMode::assign;
};

/// dw = dy^T x, dbias = column sums of dy.
struct LinearWgrad {
  Operand dy_TN;
  Operand x_TC;
  Tensor dweight_NC;
  Tensor dbias_N;  ///< optional
  WriteMode mode = WriteMode::accumulate;
};

/// gate_up = x w^T, act = silu(gate) * up. Rows [0, F) of the weight are the gate, [F, 2F) the up projection; how
/// gate and up lie in `gate_up_T2F` is the backend's own matter, the same in the three operators that touch it.
struct LinearSwiglu {
  Operand x_TC;
  Weight weight;  ///< [2F, C]
  Tensor gate_up_T2F;
  Tensor act_TF;
};

/// dact = dy w; dgate_up = gradient of act = silu(gate) * up. `act_TF`, when given, is computed again.
struct LinearDgradSwiglu {
  Operand dy_TD;
  Weight weight;  ///< [D, F], the down projection
  Tensor gate_up_T2F;
  Tensor dgate_up_T2F;  ///< may be `gate_up_T2F`
  Tensor act_TF;        ///< optional
};

// ---- Elementwise parts of the MLP ------------------------------------------------------------------------------

struct GluForward {
  Tensor gate_up_T2F;
  Tensor act_TF;
};
struct GluBackward {
  Tensor dact_TF;
  Tensor gate_up_T2F;
  Tensor dgate_up_T2F;  ///< may be `gate_up_T2F`
  Tensor act_TF;        ///< optional: computed again
};
/// GELU with the tanh approximation (GPT-2's): 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
struct GeluForward {
  Tensor x_TF;
  Tensor act_TF;
};
struct GeluBackward {
  Tensor dact_TF;
  Tensor x_TF;
  Tensor dx_TF;   ///< may be `dact_TF`
};

// ---- Embedding -------------------------------------------------------------------------------------------------

/// out[t] = table[tokens[t] - first_row] (+ positions_table[positions[t]]); a token outside the held rows gives 0.
struct EmbeddingForward {
  Tensor tokens_T;            ///< i32
  Tensor table_VD;
  std::int64_t first_row = 0;
  Tensor positions_T;         ///< i32, optional
  Tensor positions_table_SD;  ///< optional, with `positions_T`
  Tensor out_TD;
};
/// Sums dout over equal tokens, in rising order of t, so that the result does not depend on threads.
struct EmbeddingBackward {
  Tensor rows_T;  ///< i32: token or position ids
  std::int64_t first_row = 0;
  Tensor dout_TD;
  Tensor dtable_VD;
  WriteMode mode = WriteMode::accumulate;
};

// ---- Normalisation ---------------------------------------------------------------------------------------------

enum class NormKind : std::uint8_t { rms, layer };

/// sum = residual + delta; y = norm(sum) * weight (+ bias). The norm reads the sum as stored, in the activation dtype: made again
/// from the sum alone, y and the statistics have the same bits.
struct AddNormForward {
  NormKind kind = NormKind::rms;
  float eps = 1e-5f;
  Tensor residual_TD;
  Tensor delta_TD;  ///< optional
  Tensor weight_D;
  Tensor bias_D;  ///< optional
  Tensor sum_TD;  ///< written when `delta_TD` is given; may be `residual_TD`
  Tensor y_TD;
  Tensor mean_T;  ///< written for `layer` only
  Tensor rstd_T;
};
/// dx = dsum + gradient through the norm; the parameters' gradients are written by `mode`.
struct AddNormBackward {
  NormKind kind = NormKind::rms;
  Tensor dy_TD;
  Tensor dsum_TD;  ///< optional: the gradient that reaches `sum` by other ways
  Tensor sum_TD;
  Tensor weight_D;
  Tensor mean_T;
  Tensor rstd_T;
  Tensor dx_TD;  ///< may be `dsum_TD` or `dy_TD`
  Tensor dweight_D;
  Tensor dbias_D;  ///< optional
  WriteMode mode = WriteMode::accumulate;
};

// ---- Attention -------------------------------------------------------------------------------------------------

/// Heads of a merged projection: a row of `qkv` is H query heads, then K key heads, then K value heads, E each.
/// H is a multiple of K; query head h uses key head h / (H / K).
struct HeadGeometry {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  std::int64_t columns() const { return (heads + 2 * kv_heads) * head_size; }
};

/// Writes cos and sin of position * theta^(-2i/E) for i < E/2: table[s] = (cos_0 .. cos_{E/2-1}, sin_0 ..).
struct RopeTable {
  float theta = 10000.0f;
  Tensor table_SE;  ///< f32
};

/// Per head: RMS norm over E with a weight (optional), then rotation of the pairs (i, i + E/2) (Su et al., RoFormer,
/// in the half-split order of Llama's published weights). Values pass through.
struct QkNormRopeForward {
  HeadGeometry heads;
  Tensor qkv_in;       ///< [T, columns]
  Tensor qkv_out;      ///< may be `qkv_in` when there are no norm weights
  Tensor positions_T;  ///< i32
  Tensor rope_table_SE;  ///< optional: no rotation without it
  Tensor q_weight_E;   ///< optional, with `k_weight_E`
  Tensor k_weight_E;
  float eps = 1e-6f;
};
struct QkNormRopeBackward {
  HeadGeometry heads;
  Tensor qkv_in;  ///< the forward's input; read only when there are norm weights
  Tensor dqkv;    ///< in: gradient of the output; out: gradient of the input
  Tensor positions_T;
  Tensor rope_table_SE;  ///< optional
  Tensor q_weight_E;     ///< optional
  Tensor k_weight_E;
  float eps = 1e-6f;
  Tensor dq_weight_E;  ///< with the weights
  Tensor dk_weight_E;
  WriteMode mode = WriteMode::accumulate;
};

enum class MaskKind : std::uint8_t { causal, none };

/// Whether sums may be added in an order that depends on timing, where that is faster.
enum class Determinism : std::uint8_t { deterministic, fast };

/// Sequences are rows [cu_seqlens[b], cu_seqlens[b + 1]) of the token dimension, each at most `max_seqlen` long.
/// out = softmax(scale q k^T + mask) v; lse is the natural log of the sum of exponentials of the scaled scores.
struct AttentionForward {
  HeadGeometry heads;
  MaskKind mask = MaskKind::causal;
  float scale = 1.0f;
  std::int64_t sequences = 0;
  std::int64_t max_seqlen = 0;
  Tensor cu_seqlens;  ///< i32 [sequences + 1]
  Tensor qkv;         ///< [T, columns]
  Tensor out_THE;     ///< [T, H * E]
  Tensor lse_HT;      ///< f32
};
/// (Dao, FlashAttention-2, arXiv 2307.08691, algorithm 2.)
struct AttentionBackward {
  HeadGeometry heads;
  MaskKind mask = MaskKind::causal;
  float scale = 1.0f;
  Determinism determinism = Determinism::deterministic;
  std::int64_t sequences = 0;
  std::int64_t max_seqlen = 0;
  Tensor cu_seqlens;
  Tensor qkv;
  Tensor out_THE;
  Tensor lse_HT;
  Tensor dout_THE;
  Tensor dqkv;  ///< [T, columns]
};

// ---- Loss ------------------------------------------------------------------------------------------------------

/// Per token, over the vocabulary rows held here: max, sum of exp(logit - max), and the target's logit (0 when the
/// target is held elsewhere). Columns at or after `vocab` - `first_row` are padding and do not count.
struct CeStats {
  Tensor logits_TV;
  Tensor targets_T;  ///< i32
  std::int64_t first_row = 0;
  std::int64_t vocab = 0;
  Tensor max_T;
  Tensor sum_exp_T;
  Tensor target_logit_T;
};
/// Statistics of one part of the vocabulary, brought to the max of all parts: sum_exp *= exp(max_local - max). Between the
/// reductions of vocabulary parallelism: max over the ranks first, this, then the sums.
struct CeRescale {
  Tensor max_local_T;
  Tensor max_T;
  Tensor sum_exp_T;
};
/// loss[t] = weight[t] (max + log sum_exp - target_logit). dlogits = weight[t] grad_scale (softmax - onehot), in place.
struct CeFinish {
  Tensor logits_TV;
  Tensor targets_T;
  Tensor loss_weight_T;  ///< f32
  std::int64_t first_row = 0;
  std::int64_t vocab = 0;
  Tensor max_T;
  Tensor sum_exp_T;
  Tensor target_logit_T;
  float grad_scale = 0.0f;
  Tensor loss_T;  ///< f32
  enum class Want : std::uint8_t { loss, loss_and_gradient } want = Want::loss_and_gradient;
};

// ---- Elementwise and rows --------------------------------------------------------------------------------------

/// out = a + b. Any may be the same tensor.
struct Add {
  Tensor a;
  Tensor b;
  Tensor out;
};
/// x *= factor.
struct Scale {
  Tensor x;
  float factor = 1.0f;
};
/// out = in, in the dtype of `out`, rounded to nearest even.
struct Cast {
  Tensor in;
  Tensor out;
};

// ---- Reductions ------------------------------------------------------------------------------------------------

/// Elements of one block of a norm: fixed, so that the order of the sum depends on nothing else.
constexpr std::int64_t kNormBlock = 16384;
constexpr std::int64_t norm_blocks(std::int64_t numel) { return (numel + kNormBlock - 1) / kNormBlock; }

/// sums[i] = sum of squares of elements [i * kNormBlock, ...) of x, in double.
struct BlockSquareSums {
  Tensor x;
  Tensor sums;  ///< f64 [norm_blocks(numel)]
};
/// The square sums of several runs of elements added in order: total[0], and nonfinite[0] the first run with a sum that is not
/// finite, or -1. `first_block[i]` is where run i's blocks begin in `sums`, with one more entry for the end. `flag`, when given, is
/// `flag_value` where a sum is not finite and 0 where all are: ranks tell each other by its maximum.
struct TotalSquareSum {
  Tensor sums;  ///< f64
  std::span<const std::int64_t> first_block;
  Tensor total;      ///< f64 [1]
  Tensor nonfinite;  ///< i32 [1]
  Tensor flag = {};  ///< f32 [1], optional
  float flag_value = 1;
};
/// out[0] (+)= x[0] + x[1] + ... in double: blocks of 1024, then the blocks in order.
struct OrderedSum {
  Tensor x;    ///< f32
  Tensor out;  ///< f64 [1]
  WriteMode mode = WriteMode::assign;
};
/// out[i] = 64-bit hash of tensor i's bytes, seen as two i32. Equal bytes give equal hashes on every backend.
struct TensorHash {
  Tensor x;
  Tensor out;  ///< i32 [2]
};

// ---- Update ----------------------------------------------------------------------------------------------------

/// Device values that predicate the update, equal on every rank. Filled by `step_control`, read by `adamw_update`.
struct StepControlValues {
  double grad_norm = 0;        ///< global, before clipping; may be inf or nan
  float grad_factor = 0;       ///< clip factor: what each gradient is multiplied by
  std::int32_t skip = 0;       ///< 1: a gradient or the loss is not finite, nothing is updated
  std::int32_t nonfinite = -1; ///< of `TotalSquareSum`, on this rank
  std::int32_t pad = 0;
};

/// From the square sum of all gradients and the loss, both over all ranks: the norm, the clip factor min(1, clip / norm), and
/// whether to skip because one of them is not finite.
struct StepControl {
  Tensor square_sum;     ///< f64 [1]
  Tensor loss;           ///< f64 [1]
  Tensor nonfinite;      ///< i32 [1]: handed on
  double clip_norm = 0;  ///< 0: no clipping
  Tensor values;          ///< uint8 [sizeof(StepControlValues)]
};

/// A run of elements of the flat state with one weight decay, which is a box of one logical tensor: element i of the run is
/// element first + i / columns * stride + i % columns of it.
struct UpdateRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  float weight_decay = 0;
  std::uint64_t key = 0;  ///< of the tensor's own randomness
  std::int64_t first = 0, columns = 1, stride = 1;

  std::int64_t logical_index(std::int64_t i) const {
    return columns == stride ? first + i : first + i / columns * stride + i % columns;
  }
};

/// How a state in bf16 is rounded. Stochastic: up with the probability of its distance from the lower neighbour, so that updates
/// smaller than half a unit in the last place are not lost on average.
enum class Rounding : std::uint8_t { nearest, stochastic };

/// AdamW (Loshchilov and Hutter, arXiv 1711.05101), in fp32 on flat arrays:
///   g = grad * grad_factor; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2
///   w -= lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay w)
/// Does nothing when `control.skip` is set. `params` gets w in its own dtype, rounded to nearest.
/// `rounding` is of w and v where they are kept in bf16, by the word of `rounding_bits`: its low half for w, its high half for v. m is
/// rounded to nearest: it moves by a tenth of itself, v by less than bf16 can show when b2 is near 1.
struct AdamwUpdate {
  std::span<const UpdateRange> ranges;
  Tensor grads;    ///< f32 or bf16, flat
  Tensor master;   ///< f32 or bf16, flat
  Tensor moment1;  ///< f32 or bf16
  Tensor moment2;  ///< of moment1's dtype
  Tensor params;   ///< optional: undefined when the master weights are the parameters, as they must be in bf16
  Tensor control;  ///< of `StepControl`
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  std::int64_t step = 1;  ///< t, from 1
  Rounding rounding = Rounding::nearest;
};
/// Formats that go together, arrays of one length, and ranges that rise within it.
inline void check_ranges(const AdamwUpdate& a) {
  const auto is_float = [](const Tensor& t) { return t.dtype == DType::f32 || t.dtype == DType::bf16; };
  base::check(is_float(a.grads) && is_float(a.master) && is_float(a.moment1) && a.moment2.dtype == a.moment1.dtype,
              "adamw: gradients, master weights and moments in fp32 or bf16, both moments alike");
  base::check(a.master.dtype == DType::f32 || !a.params.defined(), "adamw: master weights in bf16 are the parameters");
  const std::int64_t n = a.master.numel();
  base::check(a.grads.numel() == n && a.moment1.numel() == n && a.moment2.numel() == n &&
                  (!a.params.defined() || a.params.numel() == n),
              "adamw: all flat arrays have one length");
  std::int64_t last = 0;
  for (const UpdateRange& range : a.ranges) {
    base::check(range.begin >= last && range.count >= 0, "adamw: ranges rise and do not overlap");
    last = range.begin + range.count;
  }
  base::check(last <= n, "adamw: ranges lie within the flat state");
  if (a.rounding == Rounding::nearest) return;
  for (const UpdateRange& range : a.ranges) base::check(range.columns >= 1 && range.first >= 0, "adamw: a range is a box of its tensor");
}

/// x[i] = mean + stddev * normal(key, index of element i in the logical tensor). The shard held is `rows` x `columns`
/// at (row, column) of a logical matrix with `logical_columns` columns; elements outside `logical_rows` are 0.
struct InitNormal {
  Tensor x;  ///< f32, or bf16: the same values rounded to nearest
  std::uint64_t key = 0;
  float stddev = 0;
  float mean = 0;
  std::int64_t row = 0, column = 0, rows = 0, columns = 0, logical_rows = 0, logical_columns = 0;
};

}  // namespace trainerd::kernels
