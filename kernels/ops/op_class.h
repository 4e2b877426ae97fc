#pragma once

// Class of an operator call for cost models: a matrix product of some size, attention over some length, or
// bytes to move. Each operator defines it next to its arguments.

#include <cstddef>
#include <cstdint>

#include "kernels/ops/operand.h"

namespace trainerd::kernels {

/// Number of terms in the time of a product or of attention: see core/plan/cost/measured_cost.h.
constexpr std::size_t kShapeTerms = 6;

/// The kernel that runs attention: `host` on a CPU; on a CUDA device the library, our own kernels with tensor
/// cores, or our own without.
enum class AttentionKernel : std::uint8_t { host, library, tensor_cores, plain };

struct OpClass {
  /// `experts`: the GEMMs of all experts, in the sizes of one GEMM of as many FLOPs.
  enum class Kind : std::uint8_t {
    memory,
    gemm,
    experts,
    attention_forward,
    attention_backward
  } kind = Kind::memory;
  DType dtype = DType::f32;          ///< of its operands, if those are activations, weights or parameters
  std::int64_t m = 0, n = 0, k = 0;  ///< GEMM: output rows, output columns, summands
  GemmRole role = GemmRole::fprop;
  DType out = DType::f32;  ///< dtype of a GEMM's output
  GemmFormat format = GemmFormat::plain;
  bool adds = false, bias = false;  ///< a GEMM adds to its output or adds another tensor; it has a bias
  std::int64_t length = 0;          ///< attention: queries of the longest sequence
  std::int64_t key_length = 0;      ///< attention: keys of the longest sequence, or of the mask's window
  std::int64_t heads = 0, head_size = 0, value_size = 0, sequences = 0;
  AttentionKernel kernel = AttentionKernel::host;
  /// The workspace limit splits the library's backward into pieces, or makes our own kernels run it.
  bool limited = false;
  std::int64_t rounded = 0;  ///< elements that a GEMM rounds to its format

  auto operator<=>(const OpClass&) const = default;
};

inline OpClass gemm_class(GemmRole role, DType dtype, DType out, std::int64_t m, std::int64_t n,
                          std::int64_t k, GemmFormat format = GemmFormat::plain) {
  return {.kind = OpClass::Kind::gemm,
          .dtype = dtype,
          .m = m,
          .n = n,
          .k = k,
          .role = role,
          .out = out,
          .format = format,
          .rounded = format == GemmFormat::plain ? 0 : (m + n) * k};
}

template <class Args>
OpClass op_class(const Args&) {
  return {};
}
inline OpClass memory_class(const Tensor& x) { return {.dtype = x.dtype}; }

}  // namespace trainerd::kernels
