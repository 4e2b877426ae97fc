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
  std::byte* scratch = nullptr;  ///< library_scratch() bytes
};

/// A oneDNN matmul made once for its shape, with its memory objects for each thread of the pool.
class Gemm {
 public:
  virtual ~Gemm() = default;
  /// Runs in the calling thread alone; `thread` is its index in the pool.
  virtual void run(int thread, const GemmData& data) const = 0;
  /// Whether oneDNN has no kernel for this problem and computes it by its reference loops, many times slower.
  virtual bool is_reference() const = 0;
};

/// oneDNN primitives by problem. Making one takes 0.1 to 0.4 ms: `get` all that a loop needs before it.
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
