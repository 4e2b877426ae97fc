#include "core/train/snapshot_copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::core::train {

using namespace kernels;

SnapshotCopy::SnapshotCopy(Backend& backend, const Snapshot& snapshot, Arena& scratch)
    : backend_(backend),
      snapshot_(snapshot),
      stream_(backend.make_stream("snapshot", &scratch)),
      begun_(backend.make_event()),
      staging_(backend.allocate(MemoryKind::host, kStagingBytes)) {
  for (Piece& piece : pieces_) piece.there = backend.make_event();
}

SnapshotCopy::~SnapshotCopy() {
  if (thread_.joinable()) thread_.join();
}

void SnapshotCopy::begin(Stream& stream, std::span<std::byte> segment) {
  base::check(!under_way(), "one snapshot is copied at a time");
  backend_.record(stream, *begun_);
  error_ = nullptr;
  thread_ = std::thread([this, segment] {
    try {
      backend_.enter_thread();
      copy(segment);
    } catch (...) {
      error_ = std::current_exception();
    }
  });
}

void SnapshotCopy::finish() {
  if (!under_way()) return;
  thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

// While one piece is copied from the device, the previous one is copied to the segment.
void SnapshotCopy::copy(std::span<std::byte> segment) {
  backend_.wait(*stream_, *begun_);
  std::size_t next = 0;
  snapshot_.write_header(segment);
  snapshot_.each_saved([&](const Tensor& elements, std::int64_t at) {
    const std::int64_t size = size_of(elements.dtype), most = kPieceBytes / size;
    for (std::int64_t begin = 0; begin < elements.numel(); begin += most) {
      const std::int64_t count = std::min(most, elements.numel() - begin);
      land(next);
      const Tensor staged{
          staging_.data() + static_cast<std::int64_t>(next) * kPieceBytes, elements.dtype, {count}};
      backend_.transfer(*stream_, elements.rows(begin, count), staged);
      backend_.record(*stream_, *pieces_[next].there);
      pieces_[next].to = segment.subspan(static_cast<std::size_t>(at + begin * size),
                                         static_cast<std::size_t>(count * size));
      next = 1 - next;
    }
  });
  land(next);
  land(1 - next);
}

void SnapshotCopy::land(std::size_t slot) {
  Piece& piece = pieces_[slot];
  if (piece.to.empty()) return;
  backend_.wait_host(*piece.there);
  std::memcpy(piece.to.data(), staging_.data() + static_cast<std::int64_t>(slot) * kPieceBytes,
              piece.to.size());
  piece.to = {};
}

}  // namespace trainerd::core::train
