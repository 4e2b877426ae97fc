#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/ops.h"
#include "kernels/target.h"

namespace trainerd::kernels {

// How the GEMMs of the CPU world are cut and what scratch they take: arithmetic on shapes and the target,
// shared by the operators (gemm*.cpp) and by the planner (scratch_gemm.cpp).

/// Workspace that one oneDNN primitive may ask for, per thread. 2.6.3 asks for 321 KiB at most over the
/// shapes of the presets with blocks of at most 256 rows; one that asks for more is refused when it is made.
constexpr std::int64_t kLibraryScratch = std::int64_t{512} << 10;

/// How many pieces of how many rows.
struct Blocks {
  std::int64_t size = 0;
  std::int64_t count = 0;
};
/// Cuts `n` rows in blocks of at most `largest` (about), as many as shared evenly by `threads`, of whole
/// `unit`s.
constexpr Blocks even_blocks(std::int64_t n, std::int64_t largest, std::int64_t unit, int threads) {
  if (n <= 0) return {};
  const std::int64_t wanted = ((n + largest - 1) / largest + threads - 1) / threads * threads;
  const std::int64_t size = ((n + wanted - 1) / wanted + unit - 1) / unit * unit;
  return {size, (n + size - 1) / size};
}

/// Whether a GEMM on these operands runs in fp32 because the target has no bf16 GEMM.
constexpr bool widened(DType dtype, const Target& target) {
  return dtype == DType::bf16 && !target.bf16_gemm;
}
/// Whether the weight gradient is our own kernel. Elsewhere it is oneDNN's.
constexpr bool own_wgrad(DType dtype, const Target& target) {
  return target.isa == Isa::avx512 && !widened(dtype, target);
}

/// Token rows of a block of fprop and dgrad: with plain weights oneDNN packs them again for each block.
constexpr std::int64_t kTokenBlock = 256;
/// Token rows of a block whose results a row kernel takes up: they stay in the second-level cache.
constexpr std::int64_t fused_token_block(DType dtype, bool prepared) {
  return prepared ? 256 / size_of(dtype) : kTokenBlock;
}
/// Output features of a block of a widened GEMM, and rows of a block of the weight gradient.
constexpr std::int64_t kFeatureBlock = 192;
constexpr std::int64_t kWgradRows = 96;
/// Columns of x that a weight gradient packs at a time.
constexpr std::int64_t kWgradColumns = 2048;

/// Which of oneDNN's matmuls: C[m, n] = A[m, k] B[k, n] with the ends named, all row-major with the strides
/// given.
struct GemmKey {
  enum class Left : std::uint8_t { plain, transposed };
  enum class Right : std::uint8_t { plain, transposed, prepared };
  enum class Addend : std::uint8_t { none, in_place, tensor };
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0;  ///< elements between stored rows; C and the addend are contiguous
  DType in = DType::f32, out = DType::f32;
  Left left = Left::plain;
  Right right = Right::plain;
  Addend addend = Addend::none;
  bool has_bias = false;
  DType bias = DType::f32;
  auto operator<=>(const GemmKey&) const = default;
};

/// The memory of one call.
struct GemmData {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  const std::byte* bias = nullptr;
  const std::byte* addend = nullptr;
  std::byte* c = nullptr;
  std::byte* scratch = nullptr;  ///< kLibraryScratch bytes
};

/// A oneDNN matmul made once for its shape, with its memory objects for each thread of the pool.
class Gemm {
 public:
  virtual ~Gemm() = default;
  /// Runs in the calling thread alone; `thread` is its index in the pool.
  virtual void run(int thread, const GemmData& data) const = 0;
};

/// oneDNN primitives by problem. Making one takes 0.1 to 0.4 ms: `get` all that a loop needs before it.
class GemmCache {
 public:
  explicit GemmCache(int threads) : threads_(threads) {}
  const Gemm& get(const GemmKey& key);

 private:
  int threads_;
  std::mutex mutex_;
  std::map<GemmKey, std::unique_ptr<Gemm>> made_;
};

struct GemmKernels;
const GemmKernels& gemm_kernels_of(Isa isa);

}  // namespace trainerd::kernels
