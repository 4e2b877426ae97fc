#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace trainerd::io {

/// Which two tokens merge, in which order, and into what. A hash map with open addressing.
class MergeTable {
 public:
  explicit MergeTable(std::size_t merges);
  struct Merge {
    std::int32_t rank = -1;  ///< the lowest is merged first; -1: the pair does not merge
    std::int32_t id = -1;    ///< of the token it becomes
  };
  /// A pair that is there already gets the new merge.
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

/// Byte pair encoding of one piece at a time: of all pairs of neighbours the one of the lowest rank merges,
/// the leftmost of equal ones, until none is left (Sennrich et al., arXiv:1508.07909). For one thread.
class BpeMerger {
 public:
  /// `ids`: of each byte; those of bytes that are in no piece are not used.
  BpeMerger(const std::array<std::int32_t, 256>& byte_ids, const MergeTable& merges)
      : byte_ids_(byte_ids), merges_(merges) {}
  /// Appends the ids of a piece.
  void merge(std::string_view piece, std::vector<std::int32_t>& ids);
  /// The same of a piece whose first symbols are other than its bytes.
  void merge_symbols(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& ids);

 private:
  void merge_short(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& ids);
  void merge_long(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& ids);

  const std::array<std::int32_t, 256>& byte_ids_;
  const MergeTable& merges_;

  struct Symbol {
    std::int32_t id;
    std::int32_t before, after;  // indices of its neighbours; -1: none
  };
  struct Candidate {
    std::int32_t rank, left;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  std::vector<std::int32_t> bytes_;  // ids of a long piece's
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

/// The ids of pieces that were encoded before: most pieces of a text are a few thousand words. It is emptied
/// when it is full.
class PieceCache {
 public:
  PieceCache();
  static constexpr std::size_t kLongest = 48;  ///< bytes of a piece that is kept

  static std::uint64_t hash(std::string_view piece);
  /// Appends the ids of a piece that is there.
  bool find(std::string_view piece, std::uint64_t hash, std::vector<std::int32_t>& ids) const;
  /// The piece is not there.
  void add(std::string_view piece, std::uint64_t hash, const std::int32_t* ids, std::size_t count);

 private:
  static constexpr std::size_t kSlots = 1 << 16;
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t text = 0, ids = 0;    // where they begin
    std::uint8_t bytes = 0, count = 0;  // no bytes: a free slot
  };
  void clear();
  std::vector<Slot> slots_;
  std::size_t used_ = 0;
  std::vector<char> texts_;
  std::vector<std::int32_t> ids_;
};

}  // namespace trainerd::io
