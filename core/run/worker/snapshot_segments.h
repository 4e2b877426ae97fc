#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/fd.h"
#include "kernels/base/segment.h"

namespace trainerd::core::run {

/// A rank's snapshot segments. A segment in use by the agent is not free until the agent releases it. The
/// newest snapshot's segment is not filled again before there is a newer one.
class SnapshotSegments {
 public:
  explicit SnapshotSegments(std::vector<base::UniqueFd> fds) {
    for (base::UniqueFd& fd : fds)
      segments_.push_back({base::Segment::attach(std::move(fd), base::Segment::Pages::at_once)});
  }
  int size() const { return static_cast<int>(segments_.size()); }
  std::span<std::byte> bytes(int i) const { return segments_[static_cast<std::size_t>(i)].memory.bytes(); }
  bool free(int i) const { return segments_[static_cast<std::size_t>(i)].is_free; }
  void set_free(int i, bool value) {
    Entry& segment = segments_.at(static_cast<std::size_t>(i));
    segment.is_free = value;
    segment.is_delayed = false;
  }
  /// Segment `i` has been filled.
  void set_newest(int i) { segments_.at(static_cast<std::size_t>(i)).filled = ++fills_; }
  /// The segment to fill: the free one that was filled longest ago, but not the newest. None if there is
  /// none.
  std::optional<int> next() const {
    std::optional<int> next;
    for (int i = 0; i < size(); ++i) {
      const Entry& segment = segments_[static_cast<std::size_t>(i)];
      if (!segment.is_free || (fills_ > 0 && segment.filled == fills_)) continue;
      if (!next || segment.filled < segments_[static_cast<std::size_t>(*next)].filled) next = i;
    }
    return next;
  }
  /// True if the segment is taken because its write keeps failing for now.
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
    bool is_free = true, is_delayed = false;
    std::int64_t filled = 0;  ///< number of the fill, from 1; 0: never filled
  };
  std::vector<Entry> segments_;
  std::int64_t fills_ = 0;
};

}  // namespace trainerd::core::run
