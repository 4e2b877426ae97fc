#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace trainerd::kernels::cuda {

/// A ring of pinned host memory through which bytes pass between pageable memory and the device: a piece is
/// taken, used by one copy on a stream, and free again when that copy is done. Pieces are freed in the order
/// they were taken.
class Staging {
 public:
  static constexpr std::int64_t kPiece = std::int64_t{4} << 20;  ///< most bytes of one piece
  static constexpr std::int64_t kRing = 8 * kPiece;
  static constexpr std::size_t kMaxPieces = 64;  ///< taken at a time, however small

  struct Piece {
    std::byte* data;
    cudaEvent_t done;  ///< recorded by `commit`
  };

  Staging();
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// At most kPiece bytes; waits for the oldest pieces when the ring is full. `commit` comes before the next
  /// `take`.
  Piece take(std::int64_t bytes);
  /// The piece taken last belongs to what is now on `stream`.
  void commit(cudaStream_t stream);

 private:
  struct Taken {
    std::int64_t begin, end;
    cudaEvent_t done;
  };
  void free_oldest();

  std::byte* ring_ = nullptr;
  std::int64_t head_ = 0;
  std::deque<Taken> taken_;  // in the order taken
  std::vector<cudaEvent_t> unused_;
};

}  // namespace trainerd::kernels::cuda
