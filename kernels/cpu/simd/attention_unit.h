#pragma once

// The work of one thread in attention: a sequence and key/value head, the keys its queries see, and their
// rows as operands of tiles. Letters: E head size, Ew words of a head, S keys of the sequence.
//
// Every mask is two numbers: query row q sees keys [q + begin_shift, q + end_shift), limited to existing
// keys.

#include "kernels/cpu/simd/attention_kernels.h"
#include "kernels/cpu/simd/tile.h"

namespace trainerd::kernels::TRAINERD_SIMD {

/// Elements of a head, of queries and keys or of values.
struct HeadSizes {
  std::int64_t E = 0, words = 0, E16 = 0;
};
template <class T>
HeadSizes sizes_of(std::int64_t head_size) {
  return {head_size, words_of<T>(head_size), round_up(head_size, kLanes)};
}

inline std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t larger(std::int64_t a, std::int64_t b) { return a < b ? b : a; }
inline std::int64_t clamped(std::int64_t x, std::int64_t most) { return x < 0 ? 0 : smaller(x, most); }

/// One sequence and key/value head of a call: strides and counts that the passes share. Its keys are those
/// that any query may see: `keys` keys from key `first_key` of the sequence, which is a multiple of a panel.
struct Unit {
  HeadSizes key, value;
  std::int64_t queries = 0, first_key = 0, keys = 0;
  std::int64_t begin_shift = 0, end_shift = 0;
  std::int64_t key_words = 0;  ///< words of S keys in a packed panel

  /// Query row `q` sees keys [begin_of(q), end_of(q)); neither bound decreases with q.
  std::int64_t begin_of(std::int64_t q) const { return clamped(q + begin_shift, keys); }
  std::int64_t end_of(std::int64_t q) const { return clamped(q + end_shift, keys); }
};

template <class T>
Unit unit_of(const AttentionBlock& b, const AttentionUnit& at, const AttentionScratch& s) {
  Unit u;
  u.key = sizes_of<T>(b.heads.head_size);
  u.value = sizes_of<T>(b.heads.values_size());
  u.queries = at.queries;
  u.keys = at.keys;
  u.end_shift = b.mask == MaskKind::causal ? at.offset + 1 : at.keys;
  u.begin_shift = b.window > 0 ? at.offset + 1 - b.window : -at.queries;
  u.key_words = s.max_keys / kPerWord<T>;
  const std::int64_t last = at.queries - 1, first = u.begin_of(0) / kPanel * kPanel;
  u.first_key = first;
  u.keys = at.queries == 0 ? 0 : larger(u.end_of(last) - first, 0);
  u.begin_shift -= first;
  u.end_shift -= first;
  return u;
}

template <class T>
T* at(const HeadView& x, std::int64_t row, std::int64_t head) {
  return reinterpret_cast<T*>(x.data) + row * x.row_stride + head * x.head_size;
}

/// Packs K or V by head: word k of key j is word k of row j.
template <class T>
void pack_by_head(const Unit& u, const HeadSizes& head, const T* in, std::int64_t stride, Word* out) {
  for (std::int64_t key = 0; key < u.keys; key += kPanel)
    pack_transposed(in + key * stride, stride, smaller(kPanel, u.keys - key), head.E, out + key * head.words,
                    head.words);
}

/// Packs K or V for a reduction over keys; rows up to a multiple of 64 keys are zero.
template <class T>
void pack_by_key(const Unit& u, const HeadSizes& head, const T* in, std::int64_t stride, Word* out) {
  pack_rows(in, stride, u.keys, head.E, kPanel, out, u.key_words * kPanel);
  const std::int64_t used = words_of<T>(u.keys), end = words_of<T>(round_up(u.keys, kPanel));
  for (std::int64_t panel = 0; panel < panels_of(head.E); ++panel)
    std::memset(out + (panel * u.key_words + used) * kPanel, 0,
                static_cast<std::size_t>((end - used) * kPanel) * sizeof(Word));
}

/// Copies rows of a block as left operands: whole words, with zero rows up to a whole tile.
template <class T>
void copy_rows(const HeadSizes& head, const T* in, std::int64_t stride, std::int64_t rows, Word* out) {
  using P = Packed<T>;
  const std::int64_t width = head.words * kPerWord<T>;
  P* to = reinterpret_cast<P*>(out);
  for (std::int64_t row = 0; row < round_up(rows, kTileRows); ++row, to += width) {
    const std::int64_t count = row < rows ? head.E : 0;
    const T* from = in + row * stride;
    if constexpr (std::is_same_v<T, P>) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
    else for_each_vec(count, [&](auto load, auto store) { store(to, load(from)); });
    std::memset(static_cast<void*>(to + count), 0, static_cast<std::size_t>(width - count) * sizeof(P));
  }
}

/// scores[i][j] = row i . key (first + j), for six rows and `keys` keys.
template <class T>
void score(const HeadSizes& head, const Word* rows, const Word* keys_by_head, std::int64_t first,
           std::int64_t keys, float* scores) {
  for (std::int64_t j = 0; j < keys; j += kPanel)
    tile<T>(rows, {head.words, 1}, keys_by_head + (first + j) * head.words, head.words, scores + j, kKeyBlock,
            kTileRows, smaller(kPanel, keys - j), WriteMode::assign);
}

/// out[i] (+)= weights[i] . packed, for `rows` <= 6 rows and E columns, over `words` words from word `first`.
template <class T>
void combine(const HeadSizes& head, const Word* weights, LeftStrides strides, const Word* packed,
             std::int64_t panel_words, std::int64_t first, std::int64_t words, float* out, std::int64_t rows,
             WriteMode mode) {
  for (std::int64_t e = 0; e < head.E; e += kPanel)
    tile<T>(weights, strides, packed + (e / kPanel * panel_words + first) * kPanel, words, out + e, head.E16,
            rows, smaller(kPanel, head.E - e), mode);
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
