#pragma once

// What an operator call is to a cost model: a matrix product of some size, attention over some length, or
// bytes to move. Each operator says it beside its arguments.

#include <cstddef>
#include <cstdint>

#include "kernels/ops/operand.h"

namespace trainerd::kernels {

/// What the time of a product or of attention is a sum over: see core/plan/cost/measured_cost.h.
constexpr std::size_t kShapeTerms = 6;

/// What runs attention: a CPU's kernel (`host`), or on a CUDA device the library, our own kernels on tensor
/// cores, or our own without.
enum class AttentionKernel : std::uint8_t { host, library, tensor_cores, plain };

struct OpClass {
  enum class Kind : std::uint8_t { memory, gemm, attention_forward, attention_backward } kind = Kind::memory;
  DType dtype = DType::f32;          ///< of its operands, where those are activations, weights or parameters
  std::int64_t m = 0, n = 0, k = 0;  ///< of a GEMM: output rows, output columns, summands
  GemmRole role = GemmRole::fprop;
  DType out = DType::f32;           ///< of a GEMM's output
  bool adds = false, bias = false;  ///< a GEMM adds to its output or adds another tensor; a bias
  std::int64_t length = 0;          ///< of attention: queries of the longest sequence
  std::int64_t key_length = 0;      ///< and its keys, or those of the mask's window
  std::int64_t heads = 0, head_size = 0, sequences = 0;
  AttentionKernel kernel = AttentionKernel::host;
  /// The limit of its workspace cuts the library's backward into pieces, or leaves it to our own kernels.
  bool limited = false;

  auto operator<=>(const OpClass&) const = default;
};

inline OpClass gemm_class(GemmRole role, DType dtype, DType out, std::int64_t m, std::int64_t n,
                          std::int64_t k) {
  return {.kind = OpClass::Kind::gemm, .dtype = dtype, .m = m, .n = n, .k = k, .role = role, .out = out};
}

template <class Args>
OpClass op_class(const Args&) {
  return {};
}
inline OpClass memory_class(const Tensor& x) { return {.dtype = x.dtype}; }

}  // namespace trainerd::kernels
