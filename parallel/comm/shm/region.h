#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "parallel/comm/op_record.h"
#include "parallel/comm/shm/notifier.h"

// The memory shared by the ranks of one node: one WorldRegion, and one GroupRegion per group. Both are views
// of memory that another object owns, aligned to 64 bytes and initially zero. They contain no locks, so a
// rank may die at any moment without leaving one locked.

namespace trainerd::parallel {

/// The state of the whole world: whether it has ended, and the notifier of each rank.
class WorldRegion {
 public:
  static std::int64_t bytes(std::int64_t ranks);
  WorldRegion(std::byte* base, std::int64_t ranks) : base_(base), ranks_(ranks) {}

  Notifier& notifier(std::int64_t rank) const;
  bool aborted() const;
  /// Reason of the end: the text of the first abort.
  std::string abort_text() const;
  /// Ends every operation of every rank. Keeps the first caller's text. Any thread, any process.
  void abort(std::string_view why) const;

 private:
  struct Head;
  Head& head() const;
  std::byte* base_;
  std::int64_t ranks_;
};

/// Sizes of one group's shared memory. Each rank has two slots of `chunk_bytes` for collectives. Each ordered
/// pair has a ring of `ring_bytes` for messages (0: the group does not exchange).
struct GroupShape {
  std::int64_t size = 1;
  std::int64_t chunk_bytes = 0;
  std::int64_t ring_bytes = 0;
};

class GroupRegion {
 public:
  struct alignas(64) Member {
    std::atomic<std::uint64_t> arrived;  ///< meetings that this rank has entered; shows which rank is missing
    std::atomic<std::uint32_t> taken;    ///< the rank has made its communicator
    /// by parity of the sequence number: one is read while the next is written
    std::array<OpRecord, 2> posted;
  };
  /// Total bytes written and read, which only increase. Messages start and end at multiples of kAlignment.
  struct Ring {
    alignas(64) std::atomic<std::uint64_t> written;
    alignas(64) std::atomic<std::uint64_t> read;
    /// Nonzero if the sender has more data and wants a notification when there is room.
    std::atomic<std::uint32_t> wants_room;
  };

  /// `shape` with its sizes rounded up as the layout requires.
  static GroupShape rounded(const GroupShape& shape);
  /// Bytes of a group with a rounded shape.
  static std::int64_t bytes(const GroupShape& shape);
  GroupRegion(std::byte* base, const GroupShape& rounded_shape);

  const GroupShape& shape() const { return shape_; }
  /// Total arrivals of all ranks at all meetings. Meeting m is complete at m * size.
  std::atomic<std::uint64_t>& arrivals() const {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(base_);
  }
  Member& member(std::int64_t rank) const;
  std::byte* slot(std::uint64_t parity, std::int64_t rank) const;
  Ring& ring(std::int64_t from, std::int64_t to) const;
  std::byte* ring_data(std::int64_t from, std::int64_t to) const;

 private:
  std::int64_t ring_index(std::int64_t from, std::int64_t to) const;
  std::byte* base_;
  GroupShape shape_;
};

}  // namespace trainerd::parallel
