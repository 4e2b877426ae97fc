#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/cpu/tiling/gemm.h"
#include "kernels/target/target.h"
#include "kernels/tensor/dtype.h"

namespace trainerd::kernels {

/// Identifies a oneDNN matmul: C[m, n] = A[m, k] B[k, n] with the given post-operations. All row-major with
/// the given strides.
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

/// Memory of one call.
struct GemmData {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  const std::byte* bias = nullptr;
  const std::byte* addend = nullptr;
  std::byte* c = nullptr;
  std::byte* scratch = nullptr;  ///< library_scratch() bytes
};

/// A oneDNN matmul for one shape, with memory objects for each thread of the pool.
class Gemm {
 public:
  virtual ~Gemm() = default;
  /// Runs in the calling thread only; `thread` is its index in the pool.
  virtual void run(int thread, const GemmData& data) const = 0;
  /// True if oneDNN has no kernel for this problem and uses its reference loops, which are many times slower.
  virtual bool is_reference() const = 0;
};

/// oneDNN primitives by problem. Creating one takes 0.1 to 0.4 ms, so `get` all that a loop needs before the
/// loop.
class GemmCache {
 public:
  explicit GemmCache(const Target& target)
      : threads_(target.threads), scratch_bytes_(library_scratch(target)) {}
  const Gemm& get(const GemmKey& key);

 private:
  int threads_;
  std::int64_t scratch_bytes_;
  std::mutex mutex_;
  std::map<GemmKey, std::unique_ptr<Gemm>> made_;
};

}  // namespace trainerd::kernels
