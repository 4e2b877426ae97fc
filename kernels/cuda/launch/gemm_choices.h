#pragma once

// The cuBLASLt algorithms that run matrix products, as text that is stored with a run. Host code without
// CUDA.

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/ops/op_class.h"
#include "kernels/tensor/tensor.h"

namespace trainerd::kernels::cuda {

/// A matrix product as cuBLASLt sees it, column-major: D[m, n] = op(A) op(B) (+ C) (+ bias over the rows m).
///
/// Our matrices are row-major and contiguous. A row-major X[r, c] has the same bytes as the column-major
/// X^T[c, r] with leading dimension c. So out[R, Q] = left[R, k] right[k, Q] is computed as out^T = right^T
/// left^T: A is the right operand, B the left one, m = Q, n = R. An operand that is stored as its own
/// transpose gets the opposite op:
///   fprop  y[T, N]  = x w^T     A = w (T), B = x  (N), m = N, n = T, k = C
///   dgrad  dx[T, C] = dy w      A = w (N), B = dy (N), m = C, n = T, k = N
///   wgrad  dw[N, C] = dy^T x    A = x (N), B = dy (T), m = C, n = N, k = T
/// In FP8, k is innermost in both operands (fp8_operand.h), so A is always transposed and B is not.
struct GemmProblem {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType in = DType::f32, out = DType::f32;
  GemmFormat format = GemmFormat::plain;
  bool weight = false;  ///< in FP8: A has scales of 128 x 128
  bool has_c = false, has_bias = false;
  /// Largest powers of two, up to 256, that divide the addresses. They limit the choice of algorithms.
  std::uint32_t align_a = 256, align_b = 256, align_c = 256, align_d = 256, align_bias = 256;
  auto operator<=>(const GemmProblem&) const = default;
};

/// The product of an operator's GEMM, with operands aligned to 256 bytes.
GemmProblem problem_of(const OpClass& gemm);

/// "m 4096, n 512, k 128, bf16 to f32, A transposed"
std::string describe(const GemmProblem& problem);

struct GemmChoice {
  GemmProblem problem;
  std::array<std::uint64_t, 8> algorithm{};  ///< cublasLtMatmulAlgo_t, as the library filled it
  std::int64_t workspace_bytes = 0;
  bool operator==(const GemmChoice&) const = default;
};

/// One line for the library and the device, then one line per choice.
std::string to_text(const std::string& made_with, const std::vector<GemmChoice>& choices);
/// Throws DeviceError if the text is invalid, or was made with another library or device than `made_with`.
std::vector<GemmChoice> parse_choices(const std::string& text, const std::string& made_with);

/// Seconds of one call of the i-th algorithm; infinity if the library refuses it.
using MeasureAlgorithm = std::function<double(std::size_t i)>;
/// Index of the fastest of `count` algorithms, in the library's order; 0 unless another one gains more than
/// 2%. Measures all once. Then measures those within a quarter of the fastest in turns, so that changes of
/// the clock rate affect all alike. Each counts with its best of five. Once `late` returns true nothing more
/// is measured, if one that the library takes was. Throws DeviceError if the library refuses all.
std::size_t quickest_algorithm(std::size_t count, const MeasureAlgorithm& measure,
                               const std::function<bool()>& late);

/// The choices that a run uses.
class GemmChoices {
 public:
  /// Replaces all choices. None: the library's own choice for every product.
  void use(std::vector<GemmChoice> choices);
  /// Null if no choice applies, because this product with this alignment of operands was not timed.
  const GemmChoice* find(const GemmProblem& problem) const;
  /// True if choices are in use and none applies. The library's first algorithm then runs, and is counted.
  /// Products in FP8 are not timed.
  bool missed(const GemmProblem& problem) const;

 private:
  std::map<GemmProblem, GemmChoice> chosen_;
};

}  // namespace trainerd::kernels::cuda
