#pragma once

#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <thread>

#include "core/train/snapshot.h"
#include "kernels/backend/backend.h"

namespace trainerd::core::train {

/// Fills a segment on a thread and a stream of its own, while forward and backward of the next step run: they
/// read the master weights at most, and the optimizer alone writes them and its states.
class SnapshotCopy {
 public:
  /// Pinned memory of the host, through which the state passes.
  static constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;
  static constexpr std::int64_t kStagingBytes = 2 * kPieceBytes;

  /// `snapshot` outlives this. `scratch`: of the rank's streams; nothing is taken from it.
  SnapshotCopy(kernels::Backend& backend, const Snapshot& snapshot, kernels::Arena& scratch);
  ~SnapshotCopy();
  SnapshotCopy(const SnapshotCopy&) = delete;
  SnapshotCopy& operator=(const SnapshotCopy&) = delete;

  /// The state as it is when the work that `stream` has been given so far is done. Nothing writes it before
  /// `finish`.
  void begin(kernels::Stream& stream, std::span<std::byte> segment);
  bool under_way() const { return thread_.joinable(); }
  /// Waits until the segment is filled. Throws what the copy ran into.
  void finish();

 private:
  void copy(std::span<std::byte> segment);
  struct Piece {
    std::unique_ptr<kernels::Event> there;
    std::span<std::byte> to;  ///< where it belongs; empty: nothing is in it
  };
  void land(std::size_t slot);

  kernels::Backend& backend_;
  const Snapshot& snapshot_;
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<kernels::Event> begun_;
  kernels::Buffer staging_;
  std::array<Piece, 2> pieces_;
  std::thread thread_;
  std::exception_ptr error_;
};

}  // namespace trainerd::core::train
