#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace trainerd::io {

/// Maps a pair of tokens to its merge: rank and result. A hash map with open addressing.
class MergeTable {
 public:
  explicit MergeTable(std::size_t merges);
  struct Merge {
    std::int32_t rank = -1;  ///< lowest is merged first; -1: the pair does not merge
    std::int32_t id = -1;    ///< the resulting token
  };
  /// Overwrites the merge of a pair that is already there.
  void set(std::int32_t left, std::int32_t right, Merge merge);
  Merge find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].merge;
      if (slots_[slot].key == kNone) return {};
    }
  }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kNone;
    Merge merge;
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15u) >> shift_) & mask_;
  }
  std::vector<Slot> slots_;
  std::size_t mask_;
  unsigned shift_;
};

/// Byte pair encoding of one piece at a time (Sennrich et al., arXiv:1508.07909). Repeatedly merges the
/// adjacent pair of the lowest rank, the leftmost of equal ones, until no pair merges. For one thread.
class BpeMerger {
 public:
  /// `byte_ids`: id per byte; ids of bytes that occur in no piece are unused.
  BpeMerger(const std::array<std::int32_t, 256>& byte_ids, const MergeTable& merges)
      : byte_ids_(byte_ids), merges_(merges) {}
  /// Appends the ids of a piece.
  void merge(std::string_view piece, std::vector<std::int32_t>& ids);
  /// The same for a piece that starts from `symbols` instead of its bytes.
  void merge_symbols(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& ids);

 private:
  void merge_short(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& ids);
  void merge_long(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& ids);

  const std::array<std::int32_t, 256>& byte_ids_;
  const MergeTable& merges_;

  struct Symbol {
    std::int32_t id;
    std::int32_t before, after;  // indices of the neighbours; -1: none
  };
  struct Candidate {
    std::int32_t rank, left;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  std::vector<std::int32_t> bytes_;  // ids of the bytes of a long piece
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

/// Caches the ids of encoded pieces. Most pieces of a text are a few thousand words. Cleared when full.
class PieceCache {
 public:
  PieceCache();
  static constexpr std::size_t kLongest = 48;  ///< most bytes of a cached piece

  static std::uint64_t hash(std::string_view piece);
  /// Appends the ids of a cached piece. Returns false if it is not cached.
  bool find(std::string_view piece, std::uint64_t hash, std::vector<std::int32_t>& ids) const;
  /// The piece must not be cached yet.
  void add(std::string_view piece, std::uint64_t hash, const std::int32_t* ids, std::size_t count);

 private:
  static constexpr std::size_t kSlots = 1 << 16;
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t text = 0, ids = 0;    // offsets of their beginnings
    std::uint8_t bytes = 0, count = 0;  // bytes 0: a free slot
  };
  void clear();
  std::vector<Slot> slots_;
  std::size_t used_ = 0;
  std::vector<char> texts_;
  std::vector<std::int32_t> ids_;
};

}  // namespace trainerd::io
