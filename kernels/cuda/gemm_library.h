#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "kernels/tensor.h"

namespace trainerd::kernels::cuda {

/// A matrix product as cuBLASLt sees it, column-major: D[m, n] = op(A) op(B) (+ C) (+ bias over the rows m).
///
/// Ours are row-major and contiguous. A row-major X[r, c] is, byte for byte, the column-major X^T[c, r] with leading dimension c.
/// So out[R, Q] = left[R, k] right[k, Q] is computed as out^T = right^T left^T: A is the right operand, B the left one, m = Q,
/// n = R. An operand that is stored as its own transpose has its op turned:
///   fprop  y[T, N]  = x w^T     A = w (T), B = x  (N), m = N, n = T, k = C
///   dgrad  dx[T, C] = dy w      A = w (N), B = dy (N), m = C, n = T, k = N
///   wgrad  dw[N, C] = dy^T x    A = x (N), B = dy (T), m = C, n = N, k = T
struct GemmProblem {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType in = DType::f32, out = DType::f32;
  bool has_c = false, has_bias = false;
  /// Largest powers of two, up to 256, that the addresses are multiples of: they limit the choice of algorithms.
  std::uint32_t align_a = 256, align_b = 256, align_c = 256, align_d = 256, align_bias = 256;
  auto operator<=>(const GemmProblem&) const = default;
};

/// The memory of one call. `c` may be `d`; null without one.
struct GemmArguments {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  const std::byte* c = nullptr;
  std::byte* d = nullptr;
  const std::byte* bias = nullptr;
  std::byte* scratch = nullptr;  ///< kGemmScratch bytes
};

/// Largest power of two, up to 256, that an address is a multiple of.
std::uint32_t alignment_of(const std::byte* address);

/// "cuBLASLt 13.0.2"
std::string gemm_library_name();

struct GemmPlan;  // descriptors and the chosen algorithm of one problem

/// cuBLASLt with its plans by problem. The algorithm is the first that the library's heuristic offers within the workspace:
/// the same in every run of one library version on one device. fp32 operands are multiplied in fp32, never in TF32; bf16 ones
/// are added up in fp32, in parts that are added in fp32 where an algorithm splits k. One plan costs about a tenth of a
/// millisecond on the host, once.
class GemmLibrary {
 public:
  GemmLibrary();
  ~GemmLibrary();
  GemmLibrary(const GemmLibrary&) = delete;
  GemmLibrary& operator=(const GemmLibrary&) = delete;

  /// D is assigned, or added to C. Throws DeviceError when the library has no algorithm for the problem.
  void run(cudaStream_t stream, GemmProblem problem, const GemmArguments& args);

 private:
  GemmPlan& plan_of(const GemmProblem& problem, const std::byte* bias);
  cublasLtHandle_t handle_ = nullptr;
  std::map<GemmProblem, std::unique_ptr<GemmPlan>> plans_;
};

}  // namespace trainerd::kernels::cuda
