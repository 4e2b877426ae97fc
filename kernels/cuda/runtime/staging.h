#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace trainerd::kernels::cuda {

/// A ring of pinned host memory for copies between pageable memory and the device. A piece is taken, used by
/// one copy on a stream, and free again when that copy is done. Pieces are freed in the order they were
/// taken.
class Staging {
 public:
  static constexpr std::int64_t kPiece = std::int64_t{4} << 20;  ///< maximum bytes per piece
  static constexpr std::int64_t kRing = 8 * kPiece;
  static constexpr std::size_t kMaxPieces = 64;  ///< maximum pieces in use, however small

  struct Piece {
    std::byte* data;
    cudaEvent_t done;  ///< recorded by `commit`
  };

  Staging();
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Takes at most kPiece bytes; waits for the oldest pieces if the ring is full. Call `commit` before the
  /// next `take`.
  Piece take(std::int64_t bytes);
  /// Marks the last piece as used by the work now on `stream`.
  void commit(cudaStream_t stream);

 private:
  struct Taken {
    std::int64_t begin, end;
    cudaEvent_t done;
  };
  void free_oldest();

  std::byte* ring_ = nullptr;
  std::int64_t head_ = 0;
  std::deque<Taken> taken_;  // in the order they were taken
  std::vector<cudaEvent_t> unused_;
};

}  // namespace trainerd::kernels::cuda
