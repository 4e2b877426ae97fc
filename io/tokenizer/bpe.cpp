#include "io/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>

namespace trainerd::io {
namespace {

// Up to this length a linear search per merge is faster than a heap.
constexpr std::size_t kShort = 48;

}  // namespace

MergeTable::MergeTable(std::size_t merges)
    : slots_(std::bit_ceil(std::max<std::size_t>(merges * 2, 16))),
      mask_(slots_.size() - 1),
      shift_(64 - static_cast<unsigned>(std::countr_zero(slots_.size()))) {}

void MergeTable::set(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = key_of(left, right);
  std::size_t slot = slot_of(key);
  while (slots_[slot].key != kNone && slots_[slot].key != key) slot = (slot + 1) & mask_;
  slots_[slot] = {key, merge};
}

void BpeMerger::merge(std::string_view piece, std::vector<std::int32_t>& ids) {
  const auto id_of = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (piece.size() <= kShort) {
    std::array<std::int32_t, kShort> symbols;
    std::transform(piece.begin(), piece.end(), symbols.begin(), id_of);
    return merge_short(std::span(symbols).first(piece.size()), ids);
  }
  bytes_.resize(piece.size());
  std::transform(piece.begin(), piece.end(), bytes_.begin(), id_of);
  merge_long(bytes_, ids);
}

void BpeMerger::merge_symbols(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& ids) {
  if (symbols.size() <= kShort) merge_short(symbols, ids);
  else merge_long(symbols, ids);
}

void BpeMerger::merge_short(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& ids) {
  constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();
  std::array<std::int32_t, kShort> id;
  std::array<MergeTable::Merge, kShort> merge;  // of symbols i and i + 1
  std::size_t count = symbols.size();
  const auto look = [&](std::size_t i) {
    merge[i] = merges_.find(id[i], id[i + 1]);
    if (merge[i].rank < 0) merge[i].rank = kNever;
  };
  std::copy(symbols.begin(), symbols.end(), id.begin());
  for (std::size_t i = 0; i + 1 < count; ++i) look(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i)
      if (merge[i].rank < merge[best].rank) best = i;
    if (merge[best].rank == kNever) break;
    id[best] = merge[best].id;
    for (std::size_t i = best + 1; i + 1 < count; ++i) {
      id[i] = id[i + 1];
      merge[i] = merge[i + 1];
    }
    --count;
    if (best + 1 < count) look(best);
    if (best > 0) look(best - 1);
  }
  ids.insert(ids.end(), id.begin(), id.begin() + static_cast<std::ptrdiff_t>(count));
}

// The heap may hold outdated candidates: a symbol that has merged since gives a pair of another rank. If the
// new pair has the same rank, merging it now is right.
void BpeMerger::merge_long(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& ids) {
  const auto count = static_cast<std::int32_t>(symbols.size());
  symbols_.resize(symbols.size());
  heap_.clear();
  for (std::int32_t i = 0; i < count; ++i)
    symbols_[static_cast<std::size_t>(i)] = {symbols[static_cast<std::size_t>(i)], i - 1,
                                             i + 1 < count ? i + 1 : -1};
  const auto at = [&](std::int32_t i) -> Symbol& { return symbols_[static_cast<std::size_t>(i)]; };
  const auto candidate = [&](std::int32_t left) {
    const MergeTable::Merge merge = merges_.find(at(left).id, at(at(left).after).id);
    if (merge.rank < 0) return;
    heap_.push_back({merge.rank, left});
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  };
  for (std::int32_t i = 0; i + 1 < count; ++i) candidate(i);
  while (!heap_.empty()) {
    const Candidate best = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
    Symbol& left = at(best.left);
    if (left.id < 0 || left.after < 0) continue;
    Symbol& right = at(left.after);
    const MergeTable::Merge merge = merges_.find(left.id, right.id);
    if (merge.rank != best.rank) continue;
    left.id = merge.id;
    right.id = -1;
    left.after = right.after;
    if (left.after >= 0) {
      at(left.after).before = best.left;
      candidate(best.left);
    }
    if (left.before >= 0) candidate(left.before);
  }
  for (std::int32_t i = 0; i >= 0; i = at(i).after) ids.push_back(at(i).id);
}

PieceCache::PieceCache() : slots_(kSlots) {}

std::uint64_t PieceCache::hash(std::string_view piece) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15u;
  std::uint64_t sum = piece.size() * kOdd;
  const auto mix = [&](std::uint64_t part) {
    sum = (sum ^ part) * kOdd;
    sum ^= sum >> 29;
  };
  std::size_t at = 0;
  for (; at + 8 <= piece.size(); at += 8) {
    std::uint64_t part = 0;
    std::memcpy(&part, piece.data() + at, 8);
    mix(part);
  }
  std::uint64_t part = 0;
  std::memcpy(&part, piece.data() + at, piece.size() - at);
  mix(part);
  return sum * kOdd;
}

bool PieceCache::find(std::string_view piece, std::uint64_t hash, std::vector<std::int32_t>& ids) const {
  for (std::size_t i = hash >> 48;; i = (i + 1) % kSlots) {
    const Slot& slot = slots_[i];
    if (slot.bytes == 0) return false;
    if (slot.hash != hash || slot.bytes != piece.size() ||
        std::memcmp(texts_.data() + slot.text, piece.data(), piece.size()) != 0)
      continue;
    const std::int32_t* first = ids_.data() + slot.ids;
    ids.insert(ids.end(), first, first + slot.count);
    return true;
  }
}

void PieceCache::add(std::string_view piece, std::uint64_t hash, const std::int32_t* ids, std::size_t count) {
  if (used_ * 4 >= kSlots * 3) clear();
  std::size_t i = hash >> 48;
  while (slots_[i].bytes != 0) i = (i + 1) % kSlots;
  slots_[i] = {hash, static_cast<std::uint32_t>(texts_.size()), static_cast<std::uint32_t>(ids_.size()),
               static_cast<std::uint8_t>(piece.size()), static_cast<std::uint8_t>(count)};
  texts_.insert(texts_.end(), piece.begin(), piece.end());
  ids_.insert(ids_.end(), ids, ids + count);
  ++used_;
}

void PieceCache::clear() {
  std::fill(slots_.begin(), slots_.end(), Slot{});
  texts_.clear();
  ids_.clear();
  used_ = 0;
}

}  // namespace trainerd::io
