#pragma once

// Which cuBLASLt algorithm runs a matrix product, as text that is kept with a run. Host code without CUDA.

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
/// Ours are row-major and contiguous. A row-major X[r, c] is, byte for byte, the column-major X^T[c, r] with
/// leading dimension c. So out[R, Q] = left[R, k] right[k, Q] is computed as out^T = right^T left^T: A is the
/// right operand, B the left one, m = Q, n = R. An operand that is stored as its own transpose has its op
/// turned:
///   fprop  y[T, N]  = x w^T     A = w (T), B = x  (N), m = N, n = T, k = C
///   dgrad  dx[T, C] = dy w      A = w (N), B = dy (N), m = C, n = T, k = N
///   wgrad  dw[N, C] = dy^T x    A = x (N), B = dy (T), m = C, n = N, k = T
struct GemmProblem {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType in = DType::f32, out = DType::f32;
  bool has_c = false, has_bias = false;
  /// Largest powers of two, up to 256, that the addresses are multiples of: they limit the choice of
  /// algorithms.
  std::uint32_t align_a = 256, align_b = 256, align_c = 256, align_d = 256, align_bias = 256;
  auto operator<=>(const GemmProblem&) const = default;
};

/// The product that an operator's GEMM is, on operands that lie at multiples of 256 bytes.
GemmProblem problem_of(const OpClass& gemm);

/// "m 4096, n 512, k 128, bf16 to f32, A transposed"
std::string describe(const GemmProblem& problem);

struct GemmChoice {
  GemmProblem problem;
  std::array<std::uint64_t, 8> algorithm{};  ///< cublasLtMatmulAlgo_t, as the library made it
  std::int64_t workspace_bytes = 0;
  bool operator==(const GemmChoice&) const = default;
};

/// A line for the library and the device, then one for each choice.
std::string to_text(const std::string& made_with, const std::vector<GemmChoice>& choices);
/// Throws DeviceError: not such a text, or made with another library or device than `made_with`.
std::vector<GemmChoice> parse_choices(const std::string& text, const std::string& made_with);

/// Seconds of one call of the i-th algorithm.
using MeasureAlgorithm = std::function<double(std::size_t i)>;
/// The place of the quickest of `count` algorithms, in the library's order; the first, unless another gains
/// more than 2%. All are measured once, then in turns those that were within a quarter of the quickest, so
/// that a change of the clock rate meets all of them: each has its best of five.
std::size_t quickest_algorithm(std::size_t count, const MeasureAlgorithm& measure);

/// The choices that a run uses.
class GemmChoices {
 public:
  /// These alone from now on; none: the library's own choice for every product.
  void use(std::vector<GemmChoice> choices);
  /// Null where none applies: the product, its operands' alignment included, was not timed.
  const GemmChoice* find(const GemmProblem& problem) const;
  /// Choices are in use, and none applies: the library's first algorithm runs, and is counted.
  bool missed(const GemmProblem& problem) const;

 private:
  std::map<GemmProblem, GemmChoice> chosen_;
};

}  // namespace trainerd::kernels::cuda
