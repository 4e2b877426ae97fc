#pragma once

// Types that the arguments of several operators share.

#include <cstdint>

#include "kernels/tensor/tensor.h"

namespace trainerd::kernels {

/// Whether an output is overwritten or accumulated into.
enum class WriteMode : std::uint8_t { assign, accumulate };

/// Throws std::logic_error if the arguments of an operator do not match each other. Real backends check more
/// when they run it; the meta backend only checks this.
template <class Args>
void check_args(const Args&) {}

/// Throws std::logic_error if one of the dtypes is none that operators compute on, or if bf16 is mixed with
/// fp16, for which there are no kernels.
void check_not_mixed(DType a, DType b);
/// Throws std::logic_error if weights do not have the dtype of the activations, or it is none that operators
/// compute on.
void check_weights(DType activations, DType weights);

/// The format in which a GEMM multiplies its operands.
/// - `plain`: their own.
/// - `fp8`: the operator first rounds its bf16 operands to FP8 in blocks, as DeepSeek-V3 does (section 3.3 of
///   arXiv 2412.19437). A block is 128 elements in the direction of the sum (the last one of a row may be
///   shorter), for a weight in `fprop` and `dgrad` 128 x 128. It has one scale (kernels/tensor/fp8.h), and
///   its scaled elements are rounded to E4M3. Products are summed in fp32, on a GPU within a block with fewer
///   bits. A block with an element that is not finite becomes NaN.
enum class GemmFormat : std::uint8_t { plain, fp8 };
constexpr std::int64_t kFp8Block = 128;
constexpr std::int64_t fp8_blocks(std::int64_t n) { return (n + kFp8Block - 1) / kFp8Block; }

/// The GEMM that a prepared form is for.
enum class GemmRole : std::uint8_t { fprop, dgrad, wgrad };

/// A linear layer's weight: its plain form, the backend's own form for one GEMM role (opaque bytes, may be
/// undefined), and the format of the products that read it.
struct Weight {
  Tensor plain_NC;
  Tensor prepared;
  GemmFormat format = GemmFormat::plain;

  bool operator==(const Weight&) const = default;
};

}  // namespace trainerd::kernels
