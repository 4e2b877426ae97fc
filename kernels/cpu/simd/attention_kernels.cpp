#include "kernels/cpu/simd/attention_kernels.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/simd/tile.h"

// Attention in blocks of kQueryBlock queries by kKeyBlock keys (Dao, FlashAttention-2, arXiv 2307.08691).
// Inside a block six query rows at a time are scored against the keys that they see, so that little is
// computed above the diagonal. Letters: E head size, Ew its words, S keys of the sequence.

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

static_assert(kQueryBlock % kTileRows == 0 && kTileRows % 2 == 0 && kKeyBlock % kPanel == 0);

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// One sequence and key/value head of a call: strides and counts that the passes share.
struct Unit {
  std::int64_t E = 0, head_words = 0, E16 = 0;
  std::int64_t length = 0;
  std::int64_t stride = 0;      ///< elements between tokens of qkv
  std::int64_t out_stride = 0;  ///< and of out
  std::int64_t key_words = 0;   ///< words of S keys in a packed panel
  MaskKind mask = MaskKind::causal;

  /// Keys that query row `q` sees.
  std::int64_t keys_of(std::int64_t q) const {
    return mask == MaskKind::causal ? smaller(q + 1, length) : length;
  }
};

template <class T, class Args>
Unit unit_of(const Args& a, std::int64_t length, const AttentionScratch& s) {
  Unit u;
  u.E = a.heads.head_size;
  u.head_words = words_of<T>(u.E);
  u.E16 = round_up(u.E, kLanes);
  u.length = length;
  u.stride = a.heads.columns();
  u.out_stride = a.heads.heads * u.E;
  u.key_words = s.max_keys / kPerWord<T>;
  u.mask = a.mask;
  return u;
}

/// K or V by head: word k of key j is word k of row j.
template <class T>
void pack_by_head(const Unit& u, const T* in, Word* out) {
  for (std::int64_t key = 0; key < u.length; key += kPanel)
    pack_transposed(in + key * u.stride, u.stride, smaller(kPanel, u.length - key), u.E,
                    out + key * u.head_words, u.head_words);
}

/// K or V to be reduced over keys; rows up to a multiple of 64 keys are zero.
template <class T>
void pack_by_key(const Unit& u, const T* in, Word* out) {
  pack_rows(in, u.stride, u.length, u.E, kPanel, out, u.key_words * kPanel);
  const std::int64_t used = words_of<T>(u.length), end = words_of<T>(round_up(u.length, kPanel));
  for (std::int64_t panel = 0; panel < panels_of(u.E); ++panel)
    std::memset(out + (panel * u.key_words + used) * kPanel, 0,
                static_cast<std::size_t>((end - used) * kPanel) * sizeof(Word));
}

/// Rows of a block as left operands: whole words, and zero rows up to a whole tile.
template <class T>
void copy_rows(const Unit& u, const T* in, std::int64_t stride, std::int64_t rows, Word* out) {
  const std::int64_t width = u.head_words * kPerWord<T>;
  T* to = reinterpret_cast<T*>(out);
  for (std::int64_t row = 0; row < round_up(rows, kTileRows); ++row, to += width) {
    const std::int64_t count = row < rows ? u.E : 0;
    std::memcpy(to, in + row * stride, static_cast<std::size_t>(count) * sizeof(T));
    std::memset(static_cast<void*>(to + count), 0, static_cast<std::size_t>(width - count) * sizeof(T));
  }
}

/// scores[i][j] = row i . key (first + j), for six rows and `keys` keys.
template <class T>
void score(const Unit& u, const Word* rows, const Word* keys_by_head, std::int64_t first, std::int64_t keys,
           float* scores) {
  for (std::int64_t j = 0; j < keys; j += kPanel)
    tile<T>(rows, {u.head_words, 1}, keys_by_head + (first + j) * u.head_words, u.head_words, scores + j,
            kKeyBlock, kTileRows, smaller(kPanel, keys - j), WriteMode::assign);
}

/// out[i] (+)= weights[i] . packed, for `rows` <= 6 rows and E columns, over `words` words from word `first`.
template <class T>
void combine(const Unit& u, const Word* weights, LeftStrides strides, const Word* packed,
             std::int64_t panel_words, std::int64_t first, std::int64_t words, float* out, std::int64_t rows,
             WriteMode mode) {
  for (std::int64_t e = 0; e < u.E; e += kPanel)
    tile<T>(weights, strides, packed + (e / kPanel * panel_words + first) * kPanel, words, out + e, u.E16,
            rows, smaller(kPanel, u.E - e), mode);
}

/// Lanes of vector j (keys 16 j ..) that a row with `valid` keys sees.
inline Mask seen(std::int64_t valid, std::int64_t j) {
  const std::int64_t left = valid - j;
  return first_lanes(left < 0 ? 0 : left > kLanes ? kLanes : left);
}

constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.693147180559945309f;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// 2^x for x <= 1 or so: x = n + r, 2^r for |r| <= 1/2 by its Taylor series, whose remainder is below 6e-9
/// relative.
inline Vec exp2(Vec x) {
  x = max(broadcast(-150.0f), x);
  const Vec n = round_to_whole(x), r = x - n;
  Vec p = broadcast(1.5252733804e-5f);  // ln(2)^k / k! from k = 7 down
  p = fma(p, r, broadcast(1.5403530394e-4f));
  p = fma(p, r, broadcast(1.3333558146e-3f));
  p = fma(p, r, broadcast(9.6181291076e-3f));
  p = fma(p, r, broadcast(5.5504108665e-2f));
  p = fma(p, r, broadcast(2.4022650696e-1f));
  p = fma(p, r, broadcast(6.9314718056e-1f));
  p = fma(p, r, broadcast(1.0f));
  return scale_by_power(p, n);
}

/// One row of a key block: online softmax of scores times `scale`, in powers of two (`scale` holds log2 e,
/// and so does `row_max`). Writes probabilities (unnormalised) for `width` keys, zero from `valid` on;
/// returns what earlier sums are multiplied by.
template <class T>
float soften(const float* scores, float scale, std::int64_t valid, std::int64_t width, float& row_max,
             float& row_sum, T* probs) {
  const Vec lowest = broadcast(kLowest), factor = broadcast(scale);
  const std::int64_t whole = valid < 0 ? 0 : valid / kLanes * kLanes;
  Vec largest = whole < valid ? select(seen(valid, whole), load(scores + whole) * factor, lowest) : lowest;
  for (std::int64_t j = 0; j < whole; j += kLanes) largest = max(largest, load(scores + j) * factor);
  const float old_max = row_max, new_max = max_of(largest);
  row_max = old_max > new_max ? old_max : new_max;
  const Vec shift = broadcast(-row_max);
  Vec sums = zero();
  std::int64_t j = 0;
  for (; j < whole; j += kLanes) {
    const Vec p = exp2(fma(load(scores + j), factor, shift));
    sums += p;
    store(probs + j, p);
  }
  for (; j < width; j += kLanes) {
    const Vec p = select(seen(valid, j), exp2(fma(load(scores + j), factor, shift)), zero());
    sums += p;
    store(probs + j, p);
  }
  const float correction = old_max == kLowest   ? 0.0f
                           : old_max == row_max ? 1.0f
                                                : std::exp2(old_max - row_max);
  row_sum = row_sum * correction + sum(sums);
  return correction;
}

template <class T>
void forward_block(const AttentionForward& a, const Unit& u, const AttentionScratch& s,
                   std::int64_t first_query, std::int64_t queries) {
  const std::int64_t stride = kKeyStride / kPerWord<T>;
  const std::int64_t last_keys = u.keys_of(first_query + queries - 1);
  for (std::int64_t i = 0; i < queries; ++i) {
    s.row_max[i] = kLowest;
    s.row_sum[i] = 0;
  }
  for (std::int64_t first = 0; first < last_keys; first += kKeyBlock)
    for (std::int64_t i = 0; i < queries; i += kTileRows) {
      const std::int64_t rows = smaller(kTileRows, queries - i);
      const std::int64_t keys = smaller(kKeyBlock, u.keys_of(first_query + i + rows - 1) - first);
      if (keys <= 0) continue;
      const std::int64_t width = round_up(keys, kLanes);
      score<T>(u, s.queries + i * u.head_words, s.keys_by_head, first, keys, s.scores);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t valid = smaller(keys, u.keys_of(first_query + i + r) - first);
        const float correction =
            soften(s.scores + r * kKeyBlock, a.scale * kLog2E, valid, width, s.row_max[i + r],
                   s.row_sum[i + r], reinterpret_cast<T*>(s.probs + r * stride));
        if (first > 0 && correction != 1.0f) {
          float* sums = s.sums + (i + r) * u.E16;
          for (std::int64_t e = 0; e < u.E16; e += kLanes)
            store(sums + e, load(sums + e) * broadcast(correction));
        }
      }
      combine<T>(u, s.probs, {stride, 1}, s.values, u.key_words, words_of<T>(first), words_of<T>(width),
                 s.sums + i * u.E16, rows, first > 0 ? WriteMode::accumulate : WriteMode::assign);
    }
}

template <class T>
void forward(const AttentionForward& a, std::int64_t begin, std::int64_t length, std::int64_t kv_head,
             const AttentionScratch& s) {
  const Unit u = unit_of<T>(a, length, s);
  const T* qkv = reinterpret_cast<const T*>(a.qkv.data) + begin * u.stride;
  const std::int64_t group = a.heads.heads / a.heads.kv_heads, tokens = a.qkv.shape[0];
  pack_by_head(u, qkv + (a.heads.heads + kv_head) * u.E, s.keys_by_head);
  pack_by_key(u, qkv + (a.heads.heads + a.heads.kv_heads + kv_head) * u.E, s.values);
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (std::int64_t query = 0; query < length; query += kQueryBlock) {
      const std::int64_t queries = smaller(kQueryBlock, length - query);
      copy_rows(u, qkv + query * u.stride + head * u.E, u.stride, queries, s.queries);
      T* out = reinterpret_cast<T*>(a.out_THE.data) + (begin + query) * u.out_stride + head * u.E;
      forward_block<T>(a, u, s, query, queries);
      float* lse = reinterpret_cast<float*>(a.lse_HT.data) + head * tokens + begin + query;
      for (std::int64_t i = 0; i < queries; ++i, out += u.out_stride) {
        const Vec inverse = broadcast(1.0f / s.row_sum[i]);
        const float* sums = s.sums + i * u.E16;
        for_each_vec(u.E, [&](auto load, auto store) { store(out, load(sums) * inverse); });
        lse[i] = s.row_max[i] * kLn2 + std::log(s.row_sum[i]);
      }
    }
}

/// Probabilities and gradients of scores of two query rows, for `width` keys; rows from `rows` on, and keys
/// from a row's `valid` on, are zero.
template <class T>
void differentiate(const AttentionBackward& a, const AttentionScratch& s, std::int64_t i, std::int64_t r,
                   const std::int64_t valid[2], std::int64_t width) {
  const Vec factor = broadcast(a.scale), power = broadcast(a.scale * kLog2E);
  const auto row = [&](std::int64_t k, std::int64_t j, Vec& p, Vec& ds) {
    const Vec score = load(s.scores + (r + k) * kKeyBlock + j),
              dprob = load(s.dprobs + (r + k) * kKeyBlock + j);
    p = exp2(fma(score, power, broadcast(-s.row_max[i + k])));
    ds = p * (dprob - broadcast(s.row_sum[i + k])) * factor;
    if (valid[k] - j < kLanes) {
      p = select(seen(valid[k], j), p, zero());
      ds = select(seen(valid[k], j), ds, zero());
    }
  };
  for (std::int64_t j = 0; j < width; j += kLanes) {
    Vec p[2], ds[2];
    row(0, j, p[0], ds[0]);
    row(1, j, p[1], ds[1]);
    if constexpr (kPerWord<T> == 2) {
      interleave(p[0], p[1], s.probs + i / 2 * kKeyStride + j);
      interleave(ds[0], ds[1], s.dscores_paired + i / 2 * kKeyStride + j);
      Bf16* rows = reinterpret_cast<Bf16*>(s.dscores) + i * kKeyStride + j;
      store(rows, ds[0]);
      store(rows + kKeyStride, ds[1]);
    } else {
      float* probs = reinterpret_cast<float*>(s.probs) + i * kKeyStride + j;
      float* rows = reinterpret_cast<float*>(s.dscores) + i * kKeyStride + j;
      store(probs, p[0]);
      store(probs + kKeyStride, p[1]);
      store(rows, ds[0]);
      store(rows + kKeyStride, ds[1]);
    }
  }
}

/// One block of queries of one head: dq into s.sums, dk and dv added to s.dkeys and s.dvalues.
template <class T>
void backward_block(const AttentionBackward& a, const Unit& u, const AttentionScratch& s,
                    std::int64_t first_query, std::int64_t queries) {
  const bool causal = u.mask == MaskKind::causal;
  const std::int64_t query_words = kQueryBlock / kPerWord<T>;
  const Word* paired = kPerWord<T> == 2 ? s.dscores_paired : s.dscores;
  const std::int64_t last_keys = u.keys_of(first_query + queries - 1);
  for (std::int64_t first = 0; first < last_keys; first += kKeyBlock) {
    for (std::int64_t i = 0; i < queries; i += kTileRows) {
      const std::int64_t rows = smaller(kTileRows, queries - i);
      const std::int64_t most = u.keys_of(first_query + i + rows - 1) - first;
      const std::int64_t keys = smaller(kKeyBlock, most < 0 ? 0 : most);
      // dk and dv take six keys at a time, so that five beyond the last one seen must read as zero.
      const std::int64_t width = smaller(kKeyBlock, round_up(keys + kTileRows - 1, kLanes));
      score<T>(u, s.queries + i * u.head_words, s.keys_by_head, first, keys, s.scores);
      score<T>(u, s.douts + i * u.head_words, s.values_by_head, first, keys, s.dprobs);
      for (std::int64_t r = 0; r < rows; r += 2) {
        std::int64_t valid[2];
        for (std::int64_t k = 0; k < 2; ++k)
          valid[k] = r + k < rows ? smaller(keys, u.keys_of(first_query + i + r + k) - first) : 0;
        differentiate<T>(a, s, i + r, r, valid, width);
      }
      if (keys > 0)
        combine<T>(u, s.dscores + i * kKeyStride / kPerWord<T>, {kKeyStride / kPerWord<T>, 1}, s.keys,
                   u.key_words, words_of<T>(first), words_of<T>(smaller(round_up(keys, kLanes), kKeyBlock)),
                   s.sums + i * u.E16, rows, first > 0 ? WriteMode::accumulate : WriteMode::assign);
    }
    const std::int64_t keys = smaller(kKeyBlock, last_keys - first);
    for (std::int64_t j = 0; j < keys; j += kTileRows) {
      const std::int64_t rows = smaller(kTileRows, keys - j);
      // Under a causal mask no earlier query sees key j.
      const std::int64_t unseen =
          causal && first + j > first_query ? (first + j - first_query) / kPerWord<T> : 0;
      const std::int64_t words = words_of<T>(queries) - unseen;
      float* dv = s.dvalues + (first + j) * u.E16;
      float* dk = s.dkeys + (first + j) * u.E16;
      combine<T>(u, s.probs + unseen * kKeyStride + j, {1, kKeyStride}, s.douts_packed, query_words, unseen,
                 words, dv, rows, WriteMode::accumulate);
      combine<T>(u, paired + unseen * kKeyStride + j, {1, kKeyStride}, s.queries_packed, query_words, unseen,
                 words, dk, rows, WriteMode::accumulate);
    }
  }
}

template <class T>
void write_rows(const Unit& u, const float* rows, std::int64_t count, T* out) {
  for (std::int64_t i = 0; i < count; ++i, rows += u.E16, out += u.stride)
    for_each_vec(u.E, [&](auto load, auto store) { store(out, load(rows)); });
}

template <class T>
void backward(const AttentionBackward& a, std::int64_t begin, std::int64_t length, std::int64_t kv_head,
              const AttentionScratch& s) {
  const Unit u = unit_of<T>(a, length, s);
  const T* qkv = reinterpret_cast<const T*>(a.qkv.data) + begin * u.stride;
  T* dqkv = reinterpret_cast<T*>(a.dqkv.data) + begin * u.stride;
  const std::int64_t group = a.heads.heads / a.heads.kv_heads, tokens = a.qkv.shape[0];
  const std::int64_t key_column = (a.heads.heads + kv_head) * u.E;
  const std::int64_t value_column = (a.heads.heads + a.heads.kv_heads + kv_head) * u.E;
  const std::int64_t panel_words = kQueryBlock / kPerWord<T> * kPanel;
  pack_by_head(u, qkv + key_column, s.keys_by_head);
  pack_by_head(u, qkv + value_column, s.values_by_head);
  pack_by_key(u, qkv + key_column, s.keys);
  for (float* sums : {s.dkeys, s.dvalues})
    std::memset(sums, 0, static_cast<std::size_t>(length * u.E16) * sizeof(float));
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (std::int64_t query = 0; query < length; query += kQueryBlock) {
      const std::int64_t queries = smaller(kQueryBlock, length - query);
      const std::int64_t row = (begin + query) * u.out_stride + head * u.E;
      const T* q = qkv + query * u.stride + head * u.E;
      const T* dout = reinterpret_cast<const T*>(a.dout_THE.data) + row;
      const T* out = reinterpret_cast<const T*>(a.out_THE.data) + row;
      const float* lse = reinterpret_cast<const float*>(a.lse_HT.data) + head * tokens + begin + query;
      copy_rows(u, q, u.stride, queries, s.queries);
      copy_rows(u, dout, u.out_stride, queries, s.douts);
      pack_rows(q, u.stride, queries, u.E, kPanel, s.queries_packed, panel_words);
      pack_rows(dout, u.out_stride, queries, u.E, kPanel, s.douts_packed, panel_words);
      for (std::int64_t i = 0; i < round_up(queries, 2); ++i) {
        Vec product = zero();
        if (i < queries)
          for_each_vec(u.E, [&](auto load, auto) {
            product += load(dout + i * u.out_stride) * load(out + i * u.out_stride);
          });
        s.row_sum[i] = sum(product);
        s.row_max[i] = i < queries ? lse[i] * kLog2E : 0.0f;
      }
      backward_block<T>(a, u, s, query, queries);
      write_rows(u, s.sums, queries, dqkv + query * u.stride + head * u.E);
    }
  write_rows(u, s.dkeys, length, dqkv + key_column);
  write_rows(u, s.dvalues, length, dqkv + value_column);
}

}  // namespace

const AttentionKernels& attention_kernels() {
  static constexpr AttentionKernels kKernels{
      .forward =
          [](const AttentionForward& a, std::int64_t begin, std::int64_t length, std::int64_t kv_head,
             const AttentionScratch& s) {
            a.qkv.dtype == DType::bf16 ? forward<Bf16>(a, begin, length, kv_head, s)
                                       : forward<float>(a, begin, length, kv_head, s);
          },
      .backward =
          [](const AttentionBackward& a, std::int64_t begin, std::int64_t length, std::int64_t kv_head,
             const AttentionScratch& s) {
            a.qkv.dtype == DType::bf16 ? backward<Bf16>(a, begin, length, kv_head, s)
                                       : backward<float>(a, begin, length, kv_head, s);
          },
  };
  return kKernels;
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
