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

/// Copies a snapshot into a segment on its own thread and stream, during the next step's forward and
/// backward. These at most read the master weights; only the optimizer writes them and its states.
class SnapshotCopy {
 public:
  /// Size of the pinned host buffers through which the state is copied.
  static constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;
  static constexpr std::int64_t kStagingBytes = 2 * kPieceBytes;

  /// `snapshot` must outlive this. `scratch` is for the new stream; nothing is taken from it.
  SnapshotCopy(kernels::Backend& backend, const Snapshot& snapshot, kernels::Arena& scratch);
  ~SnapshotCopy();
  SnapshotCopy(const SnapshotCopy&) = delete;
  SnapshotCopy& operator=(const SnapshotCopy&) = delete;

  /// Starts the copy of the state after the work issued so far on `stream`. Nothing may write the state
  /// before `finish`.
  void begin(kernels::Stream& stream, std::span<std::byte> segment);
  bool under_way() const { return thread_.joinable(); }
  /// Waits until the segment is filled. Throws the copy's error.
  void finish();

 private:
  void copy(std::span<std::byte> segment);
  struct Piece {
    std::unique_ptr<kernels::Event> there;
    std::span<std::byte> to;  ///< destination; empty: the buffer is free
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
