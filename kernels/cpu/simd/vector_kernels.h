#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/ops.h"

namespace trainerd::kernels {

/// A run of elements of the optimizer's flat state with one weight decay; `params` may be null.
struct ParamRun {
  UpdateRule rule = UpdateRule::adamw;
  bool nesterov = false;
  DType grad_dtype = DType::f32;
  DType param_dtype = DType::f32;
  DType master_dtype = DType::f32;
  DType moment_dtype = DType::f32;
  const std::byte* grads = nullptr;
  std::byte* master = nullptr;
  std::byte* moment1 = nullptr;
  std::byte* moment2 = nullptr;
  std::byte* params = nullptr;
  /// `rounding_bits` per element, padded to a multiple of 16; null: round to nearest
  const std::uint32_t* random = nullptr;
  std::int64_t count = 0;
  float grad_factor = 1;
  float lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  float correction1 = 1;  ///< 1 / (1 - beta1^t)
  float correction2 = 1;  ///< 1 / (1 - beta2^t)
};

/// A run of elements of MomentumUpdate.
struct MomentumRun {
  DType grad_dtype = DType::f32;
  DType momentum_dtype = DType::f32;
  const std::byte* grads = nullptr;
  std::byte* momentum = nullptr;
  float* direction = nullptr;
  std::int64_t count = 0;
  float grad_factor = 1, mu = 0;
  bool nesterov = true;
};

/// A run of elements of DirectionUpdate with one weight decay; `params` may be null.
struct DirectionRun {
  DType param_dtype = DType::f32;
  DType master_dtype = DType::f32;
  const float* direction = nullptr;
  std::byte* master = nullptr;
  std::byte* params = nullptr;
  const std::uint32_t* random = nullptr;  ///< as in ParamRun
  std::int64_t count = 0;
  float lr = 0, scale = 1, weight_decay = 0;
};

/// The vector kernels of one instruction set: each is one thread's work on one block of an operator. Byte
/// pointers point to elements of the given dtype. Kernels that take an operator's arguments process its rows
/// [begin, end). Kernels have no state and allocate nothing.
struct VectorKernels {
  // Rows of gate_up are [gate (F) | up (F)]. `act` of the backward may be null; dgate_up may be gate_up.
  void (*glu_forward)(DType, Gate, const std::byte* gate_up, std::byte* act, std::int64_t rows,
                      std::int64_t ffn);
  void (*glu_backward)(DType, Gate, const std::byte* dact, const std::byte* gate_up, std::byte* dgate_up,
                       std::byte* act, std::int64_t rows, std::int64_t ffn);
  void (*gelu_forward)(DType, const std::byte* x, std::byte* act, std::int64_t n);
  void (*gelu_backward)(DType, const std::byte* dact, const std::byte* x, std::byte* dx, std::int64_t n);

  void (*add_norm_forward)(const AddNormForward&, std::int64_t begin, std::int64_t end);
  /// Assigns the rows' sums to `dweight_D` and, if not null, `dbias_D`.
  void (*add_norm_backward)(const AddNormBackward&, std::int64_t begin, std::int64_t end, float* dweight_D,
                            float* dbias_D);
  void (*qk_norm_sums)(const QkNormSums&, std::int64_t begin, std::int64_t end);
  void (*qk_norm_rope_forward)(const QkNormRopeForward&, std::int64_t begin, std::int64_t end);
  /// Assigns the rows' sums to `dq_weight_E` and `dk_weight_E`, which are null if there are no norm weights.
  void (*qk_norm_rope_backward)(const QkNormRopeBackward&, std::int64_t begin, std::int64_t end,
                                float* dq_weight_E, float* dk_weight_E);
  void (*latent_heads_forward)(const LatentHeadsForward&, std::int64_t begin, std::int64_t end);
  void (*latent_heads_backward)(const LatentHeadsBackward&, std::int64_t begin, std::int64_t end);
  /// out[i] (+)= partial[0][i] + partial[1][i] + ..., for i < n, in that order; rows are `stride` floats
  /// apart.
  void (*sum_partials)(const float* partial, std::int64_t rows, std::int64_t stride, std::int64_t n, DType,
                       std::byte* out, WriteMode);

  /// Rows [begin, end). The backward returns the whole gradient of one head's sink.
  void (*attention_sink_forward)(const AttentionSinkForward&, std::int64_t begin, std::int64_t end);
  float (*attention_sink_backward)(const AttentionSinkBackward&, std::int64_t head);

  void (*embedding_forward)(const EmbeddingForward&, std::int64_t begin, std::int64_t end);
  /// Writes table row `row`: the sum of the `count` rows of dout named by `order`, in that order.
  void (*embedding_row)(const EmbeddingBackward&, std::int64_t row, const std::int32_t* order,
                        std::int64_t count);

  /// Tokens [begin, end), and rows [begin, end).
  void (*combine_rows)(const CombineRows&, std::int64_t begin, std::int64_t end);
  void (*weigh_rows)(const WeighRows&, std::int64_t begin, std::int64_t end);

  void (*ce_stats)(const CeStats&, std::int64_t begin, std::int64_t end);
  void (*ce_finish)(const CeFinish&, std::int64_t begin, std::int64_t end);

  void (*add)(DType, const std::byte* a, const std::byte* b, std::byte* out, std::int64_t n);
  void (*scale)(DType, const std::byte* x, float factor, std::byte* out, std::int64_t n);
  void (*multiply)(DType, const std::byte* x, const float* factors, std::byte* out, std::int64_t n);
  void (*cast)(DType from, const std::byte* in, DType to, std::byte* out, std::int64_t n);
  /// out[i] (+)= part[0][i] + part[1][i] + ..., for i < n, in that order; parts begin `stride` elements
  /// apart.
  void (*sum_parts)(DType, const std::byte* part, std::int64_t parts, std::int64_t stride, DType out_dtype,
                    std::byte* out, std::int64_t n, WriteMode);
  /// Sum of squares in double.
  double (*square_sum)(DType, const std::byte* x, std::int64_t n);
  /// The two hash sums of `words` 32-bit words, of which the first has the number `index` (the hash is
  /// defined in reduce.cpp).
  void (*hash_words)(const std::byte* x, std::int64_t index, std::int64_t words, std::uint32_t sums[2]);
  void (*param_update)(const ParamRun&);
  /// average[i] = decay average[i] + (1 - decay) weights[i]
  void (*average)(DType, const std::byte* weights, float* average, float decay, std::int64_t n);
  void (*momentum)(const MomentumRun&);
  void (*direction)(const DirectionRun&);

  /// Rounds elements to FP8 (kernels/tensor/fp8.h) with one scale for the block, or one for each of its
  /// columns. `x` and `out` have `stride` elements from row to row.
  void (*round_fp8_block)(const Bf16* x, Bf16* out, std::int64_t rows, std::int64_t columns,
                          std::int64_t stride);
  void (*round_fp8_columns)(const Bf16* x, Bf16* out, std::int64_t rows, std::int64_t columns,
                            std::int64_t stride);
};

/// All members above, each once.
#define TRAINERD_VECTOR_KERNELS(X) \
  X(glu_forward)                   \
  X(glu_backward)                  \
  X(gelu_forward)                  \
  X(gelu_backward)                 \
  X(add_norm_forward)              \
  X(add_norm_backward)             \
  X(qk_norm_sums)                  \
  X(qk_norm_rope_forward)          \
  X(qk_norm_rope_backward)         \
  X(latent_heads_forward)          \
  X(latent_heads_backward)         \
  X(sum_partials)                  \
  X(attention_sink_forward)        \
  X(attention_sink_backward)       \
  X(embedding_forward)             \
  X(embedding_row)                 \
  X(combine_rows)                  \
  X(weigh_rows)                    \
  X(ce_stats)                      \
  X(ce_finish)                     \
  X(add)                           \
  X(scale)                         \
  X(multiply)                      \
  X(cast)                          \
  X(sum_parts)                     \
  X(square_sum)                    \
  X(hash_words)                    \
  X(param_update)                  \
  X(average)                       \
  X(momentum)                      \
  X(direction)                     \
  X(round_fp8_block)               \
  X(round_fp8_columns)

namespace portable {
const VectorKernels& vector_kernels();
}
namespace avx2 {
const VectorKernels& vector_kernels();
}
namespace avx512 {
const VectorKernels& vector_kernels();
}
namespace avx512_bf16 {
const VectorKernels& vector_kernels();
}

}  // namespace trainerd::kernels
