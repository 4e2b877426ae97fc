#pragma once

// The inner product tile that our own GEMMs and attention use, and the packing it requires.
//
// Operands are arrays of words: one fp32, or two consecutive bf16 along the reduction (the even one in the
// low half). fp16 is packed as fp32. "Depth" counts words. B is packed in panels: row k of a panel holds word
// k of kPanel output columns, side by side.

#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd/simd.h"
#include "kernels/ops/ops.h"

namespace trainerd::kernels::TRAINERD_SIMD {

constexpr std::int64_t kTileRows = 6;
/// Columns of a packed panel: the width of a tile, so that a panel is read sequentially.
constexpr std::int64_t kPanel = kTileVectors * kLanes;

/// The type in which elements of T are packed and multiplied.
template <class T>
using Packed = std::conditional_t<std::is_same_v<T, Fp16>, float, T>;
/// Elements of the reduction in one word.
template <class T>
constexpr std::int64_t kPerWord = 4 / static_cast<std::int64_t>(sizeof(Packed<T>));

template <class T>
constexpr std::int64_t words_of(std::int64_t elements) {
  return (elements + kPerWord<T> - 1) / kPerWord<T>;
}
constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }
constexpr std::int64_t panels_of(std::int64_t columns) { return (columns + kPanel - 1) / kPanel; }

/// Strides of a tile's left operand: word k of row i is at a[i * row + k * depth].
struct LeftStrides {
  std::int64_t row;
  std::int64_t depth;
};

/// C[i][16 j + lane] (+)= sum over k of A[i][k] . B[k][16 j + lane], for `rows` <= Rows rows and Vectors <=
/// kTileVectors. Always reads words of `Rows` rows of A; writes C in whole vectors.
template <class T, int Vectors, int Rows = kTileRows>
inline void tile(const Word* a, LeftStrides strides, const Word* b, std::int64_t depth, float* c,
                 std::int64_t ldc, std::int64_t rows, WriteMode mode) {
  Vec sums[Rows][Vectors];
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) sums[i][j] = zero();
  // Prefetch C, which is added at the end, so that the products need not wait for it.
  if (mode == WriteMode::accumulate)
    for (std::int64_t i = 0; i < rows; ++i)
      for (int j = 0; j < Vectors; ++j) __builtin_prefetch(c + i * ldc + j * kLanes, 1);
  for (std::int64_t k = 0; k < depth; ++k, a += strides.depth, b += kPanel) {
    Words right[Vectors];
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) right[j] = load_words(b + j * kLanes);
#pragma GCC unroll 6
    for (int i = 0; i < Rows; ++i) {
      const Words left = broadcast_word(a + i * strides.row);
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) sums[i][j] = dot<T>(sums[i][j], left, right[j]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i)
    if (i < rows)
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) {
        float* to = c + i * ldc + j * kLanes;
        store(to, mode == WriteMode::accumulate ? load(to) + sums[i][j] : sums[i][j]);
      }
}

/// The tile for `columns` columns of the panel, rounded up to whole vectors.
template <class T>
inline void tile(const Word* a, LeftStrides strides, const Word* b, std::int64_t depth, float* c,
                 std::int64_t ldc, std::int64_t rows, std::int64_t columns, WriteMode mode) {
  static_assert(kTileVectors == 4 || kTileVectors == 1);
  const std::int64_t vectors = (columns + kLanes - 1) / kLanes;
  if constexpr (kTileVectors == 4) {
    if (vectors == 4) return tile<T, 4>(a, strides, b, depth, c, ldc, rows, mode);
    if (vectors == 3) return tile<T, 3>(a, strides, b, depth, c, ldc, rows, mode);
    if (vectors == 2) return tile<T, 2>(a, strides, b, depth, c, ldc, rows, mode);
  }
  if (vectors == 1) tile<T, 1>(a, strides, b, depth, c, ldc, rows, mode);
}

/// Packs rows `low` and `high` (one row for fp32; `high` may be null) of `columns` elements as words into
/// out[0, width), zero-padded.
template <class T>
inline void pack_row(const T* low, const T* high, std::int64_t columns, Word* out, std::int64_t width) {
  std::int64_t i = 0;
  if constexpr (std::is_same_v<T, Fp16>) {
    float* to = reinterpret_cast<float*>(out);
    for_each_vec(columns, [&](auto load, auto store) { store(to, load(low)); });
    i = columns;
  } else if constexpr (sizeof(T) == 4) {
    for (; i + kLanes <= columns; i += kLanes)
      store_words(out + i, load_words(reinterpret_cast<const Word*>(low + i)));
    for (; i < columns; ++i) std::memcpy(out + i, low + i, sizeof(Word));
  } else {
    if (high != nullptr)
      for (; i + kLanes <= columns; i += kLanes) interleave(low + i, high + i, out + i);
    for (; i < columns; ++i)
      out[i] =
          static_cast<Word>(low[i].bits) | (high != nullptr ? static_cast<Word>(high[i].bits) << 16 : 0u);
  }
  for (; i < width; ++i) out[i] = 0;
}

/// Packs in[rows][columns] (row stride in elements), which is reduced along its rows, into panels of `width`
/// columns that are `panel_stride` words apart. Reads whole input rows, so that a large stride costs no cache
/// misses. An odd last row is paired with zeros.
template <class T>
inline void pack_rows(const T* in, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                      std::int64_t width, Word* out, std::int64_t panel_stride) {
  for (std::int64_t k = 0; k < rows; k += kPerWord<T>, out += width) {
    const T* low = in + k * stride;
    const T* high = kPerWord<T> == 2 && k + 1 < rows ? low + stride : nullptr;
    Word* panel = out;
    for (std::int64_t column = 0; column < columns; column += width, panel += panel_stride)
      pack_row(low + column, high == nullptr ? nullptr : high + column,
               columns - column < width ? columns - column : width, panel, width);
  }
}

/// Packs in[columns][depth elements], which is reduced along its rows' elements, into one panel: out[k *
/// kPanel + column]. Zero-pads columns to kPanel and words to `depth_words`.
template <class T>
inline void pack_transposed(const T* in, std::int64_t stride, std::int64_t columns,
                            std::int64_t depth_elements, Word* out, std::int64_t depth_words) {
  const std::int64_t whole = depth_elements / kPerWord<T> / 16 * 16;
  const auto word = [&](std::int64_t column, std::int64_t k) {
    Word w = 0;
    if constexpr (std::is_same_v<T, Fp16>) {
      if (column < columns && k < depth_elements) w = __builtin_bit_cast(Word, wide(in[column * stride + k]));
    } else if (column < columns && k * kPerWord<T> < depth_elements) {
      const std::int64_t left = (depth_elements - k * kPerWord<T>)*static_cast<std::int64_t>(sizeof(T));
      std::memcpy(&w, in + column * stride + k * kPerWord<T>, static_cast<std::size_t>(left < 4 ? left : 4));
    }
    return w;
  };
  for (std::int64_t column = 0; column < kPanel; column += 16) {
    std::int64_t k = 0;
    // Rows with an odd stride or start are not aligned for words.
    if (!std::is_same_v<T, Fp16> && column + 16 <= columns && stride % kPerWord<T> == 0 &&
        reinterpret_cast<std::uintptr_t>(in) % 4 == 0)
      for (; k < whole; k += 16)
        transpose_16x16(reinterpret_cast<const Word*>(in + column * stride) + k, stride / kPerWord<T>,
                        out + k * kPanel + column, kPanel);
    for (; k < depth_words; ++k)
      for (std::int64_t j = column; j < column + 16; ++j) out[k * kPanel + j] = word(j, k);
  }
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
