#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/fd.h"
#include "kernels/base/segment.h"

namespace trainerd::core::run {

/// The snapshot segments, filled in turn; one is free again when the agent has written it.
class SnapshotSegments {
 public:
  explicit SnapshotSegments(std::vector<base::UniqueFd> fds) {
    for (base::UniqueFd& fd : fds) segments_.push_back({base::Segment::attach(std::move(fd)), true, false});
  }
  int size() const { return static_cast<int>(segments_.size()); }
  std::span<std::byte> bytes(int i) const { return segments_[static_cast<std::size_t>(i)].memory.bytes(); }
  bool free(int i) const { return segments_[static_cast<std::size_t>(i)].is_free; }
  void set_free(int i, bool value) {
    Entry& segment = segments_.at(static_cast<std::size_t>(i));
    segment.is_free = value;
    segment.is_delayed = false;
  }
  /// Taken, by what cannot be written for now.
  bool delayed(int i) const { return segments_[static_cast<std::size_t>(i)].is_delayed; }
  void set_delayed(int i) { segments_.at(static_cast<std::size_t>(i)).is_delayed = true; }
  bool all_free() const {
    for (int i = 0; i < size(); ++i)
      if (!free(i)) return false;
    return true;
  }

 private:
  struct Entry {
    base::Segment memory;
    bool is_free, is_delayed;
  };
  std::vector<Entry> segments_;
};

}  // namespace trainerd::core::run
