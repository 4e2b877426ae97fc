#include "kernels/cpu/simd/attention_kernels.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/simd/attention_unit.h"

// Attention in blocks of kQueryBlock queries by kKeyBlock keys (Dao, FlashAttention-2, arXiv 2307.08691).
// Inside a block, six query rows at a time are scored against the keys that they see, so that few scores
// above the diagonal are computed.

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

static_assert(kQueryBlock % kTileRows == 0 && kTileRows % 2 == 0 && kKeyBlock % kPanel == 0);

constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.693147180559945309f;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// Returns `yes` in the lanes of vector j (keys 16 j ..) whose keys are in [begin, end), else `no`.
inline Vec where_seen(std::int64_t begin, std::int64_t end, std::int64_t j, Vec yes, Vec no) {
  const Vec before_end = select(first_lanes(clamped(end - j, kLanes)), yes, no);
  return begin > j ? select(first_lanes(clamped(begin - j, kLanes)), no, before_end) : before_end;
}

/// 2^x for x up to about 1: x = n + r, and 2^r for |r| <= 1/2 by its Taylor series, whose relative remainder
/// is below 6e-9.
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

/// Scales the scores of a row and applies the softcap, in place. Only changes the first `width` scores.
inline void cap_scores(float* scores, std::int64_t width, const AttentionBlock& b) {
  const Vec inner = broadcast(b.scale / b.softcap), cap = broadcast(b.softcap);
  for (std::int64_t j = 0; j < width; j += kLanes)
    store(scores + j, cap * tanh(load(scores + j) * inner).value);
}

/// Online softmax of one row of a key block: scores times `scale`, in powers of two (`scale` and `row_max`
/// include the factor log2 e). Writes unnormalised probabilities for `width` keys, zero outside [begin, end).
/// Returns the factor that rescales earlier sums.
template <class T>
float soften(const float* scores, float scale, std::int64_t begin, std::int64_t end, std::int64_t width,
             float& row_max, float& row_sum, T* probs) {
  const Vec lowest = broadcast(kLowest), factor = broadcast(scale);
  // All lanes of the vectors [open, whole) are seen.
  const std::int64_t whole = end < 0 ? 0 : end / kLanes * kLanes;
  const std::int64_t open = begin <= 0 ? 0 : smaller(round_up(begin, kLanes), width);
  Vec largest = whole < end ? where_seen(begin, end, whole, load(scores + whole) * factor, lowest) : lowest;
  for (std::int64_t j = 0; j < smaller(open, whole); j += kLanes)
    largest = max(largest, where_seen(begin, end, j, load(scores + j) * factor, lowest));
  for (std::int64_t j = open; j < whole; j += kLanes) largest = max(largest, load(scores + j) * factor);
  const float old_max = row_max, new_max = max_of(largest);
  row_max = old_max > new_max ? old_max : new_max;
  const Vec shift = broadcast(-row_max);
  Vec sums = zero();
  std::int64_t j = 0;
  const auto weigh_seen = [&](std::int64_t until) {
    for (; j < until; j += kLanes) {
      const Vec p = where_seen(begin, end, j, exp2(fma(load(scores + j), factor, shift)), zero());
      sums += p;
      store(probs + j, p);
    }
  };
  weigh_seen(open);
  for (; j < whole; j += kLanes) {
    const Vec p = exp2(fma(load(scores + j), factor, shift));
    sums += p;
    store(probs + j, p);
  }
  weigh_seen(width);
  const float correction = old_max == kLowest   ? 0.0f
                           : old_max == row_max ? 1.0f
                                                : std::exp2(old_max - row_max);
  row_sum = row_sum * correction + sum(sums);
  return correction;
}

/// One block of queries of one head: unnormalised outputs into s.sums, with s.row_max and s.row_sum. A row
/// that sees no key has a row_sum of 0.
template <class T>
void forward_block(const AttentionForward& a, const Unit& u, const AttentionScratch& s,
                   std::int64_t first_query, std::int64_t queries) {
  const std::int64_t stride = kKeyStride / kPerWord<T>;
  const std::int64_t end = u.end_of(first_query + queries - 1);
  const bool capped = a.block.softcap > 0;
  const float factor = capped ? kLog2E : a.block.scale * kLog2E;
  for (std::int64_t i = 0; i < queries; ++i) {
    s.row_max[i] = kLowest;
    s.row_sum[i] = 0;
  }
  for (std::int64_t first = u.begin_of(first_query) / kPanel * kPanel; first < end; first += kKeyBlock)
    for (std::int64_t i = 0; i < queries; i += kTileRows) {
      const std::int64_t rows = smaller(kTileRows, queries - i), query = first_query + i;
      const std::int64_t begin = u.begin_of(query);  // no row of the six sees an earlier key
      const std::int64_t keys = smaller(kKeyBlock, u.end_of(query + rows - 1) - first);
      if (keys <= 0 || begin >= first + kKeyBlock) continue;
      const bool opens = begin >= first;  // these are the first keys of these rows
      const std::int64_t width = round_up(keys, kLanes);
      score<T>(u.key, s.queries + i * u.key.words, s.keys_by_head, first, keys, s.scores);
      for (std::int64_t r = 0; r < rows; ++r) {
        if (capped) cap_scores(s.scores + r * kKeyBlock, width, a.block);
        const float correction = soften(s.scores + r * kKeyBlock, factor, u.begin_of(query + r) - first,
                                        smaller(keys, u.end_of(query + r) - first), width, s.row_max[i + r],
                                        s.row_sum[i + r], reinterpret_cast<T*>(s.probs + r * stride));
        if (!opens && correction != 1.0f) {
          float* sums = s.sums + (i + r) * u.value.E16;
          for (std::int64_t e = 0; e < u.value.E16; e += kLanes)
            store(sums + e, load(sums + e) * broadcast(correction));
        }
      }
      combine<T>(u.value, s.probs, {stride, 1}, s.values, u.key_words, words_of<T>(first), words_of<T>(width),
                 s.sums + i * u.value.E16, rows, opens ? WriteMode::assign : WriteMode::accumulate);
    }
}

/// Writes one row's output and log-sum-exp, or merges them into the existing ones: with l' = log(e^l + e^l0)
/// the output is e^(l - l') out + e^(l0 - l') out0 (like blocks of keys in arXiv 2307.08691, section 3.1).
template <class T>
void finish_row(WriteMode mode, std::int64_t E, const float* sums, float row_max, float row_sum, T* out,
                float* lse) {
  const bool sees = row_sum != 0.0f, empty = mode == WriteMode::assign || *lse == kLowest;
  if (!sees && mode == WriteMode::accumulate) return;
  if (!sees) {
    for_each_vec(E, [&](auto, auto store) { store(out, zero()); });
    *lse = kLowest;
    return;
  }
  const Vec inverse = broadcast(1.0f / row_sum);
  const float log_sum = row_max * kLn2 + std::log(row_sum);
  if (empty) {
    for_each_vec(E, [&](auto load, auto store) { store(out, load(sums) * inverse); });
    *lse = log_sum;
    return;
  }
  const float above = log_sum - *lse, ratio = std::exp(above > 0 ? -above : above), whole = 1.0f + ratio;
  const Vec added = broadcast((above > 0 ? 1.0f : ratio) / whole) * inverse,
            kept = broadcast((above > 0 ? ratio : 1.0f) / whole);
  for_each_vec(E, [&](auto load, auto store) { store(out, load(out) * kept + load(sums) * added); });
  *lse = (above > 0 ? log_sum : *lse) + std::log1p(ratio);
}

template <class T>
void forward(const AttentionForward& a, const AttentionUnit& unit, const AttentionScratch& s) {
  const Unit u = unit_of<T>(a.block, unit, s);
  const HeadGeometry& heads = a.block.heads;
  const std::int64_t group = heads.heads / heads.kv_heads, tokens = a.lse_HT.shape[1],
                     key = unit.first_key + u.first_key;
  pack_by_head(u, u.key, at<const T>(a.k_TKE, key, unit.kv_head), a.k_TKE.row_stride, s.keys_by_head);
  pack_by_key(u, u.value, at<const T>(a.v_TKE, key, unit.kv_head), a.v_TKE.row_stride, s.values);
  for (std::int64_t head = unit.kv_head * group; head < (unit.kv_head + 1) * group; ++head)
    for (std::int64_t query = 0; query < u.queries; query += kQueryBlock) {
      const std::int64_t queries = smaller(kQueryBlock, u.queries - query), row = unit.first_query + query;
      copy_rows(u.key, at<const T>(a.q_THE, row, head), a.q_THE.row_stride, queries, s.queries);
      forward_block<Packed<T>>(a, u, s, query, queries);
      float* lse = reinterpret_cast<float*>(a.lse_HT.data) + head * tokens + row;
      with_type(a.out_THE.dtype, [&]<class O>(O) {
        O* out = at<O>(a.out_THE, row, head);
        for (std::int64_t i = 0; i < queries; ++i, out += a.out_THE.row_stride)
          finish_row(a.mode, u.value.E, s.sums + i * u.value.E16, s.row_max[i], s.row_sum[i], out, lse + i);
      });
    }
}

/// Keys [begin, end) of a block.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
};

/// Probabilities and score gradients of two query rows, for `width` keys. Keys outside a row's `seen` get
/// zero.
template <class T, bool kCapped>
void differentiate(const AttentionBackward& a, const AttentionScratch& s, std::int64_t i, std::int64_t r,
                   const KeyRange seen[2], std::int64_t width) {
  const Vec factor = broadcast(a.block.scale),
            power = broadcast((kCapped ? a.block.softcap : a.block.scale) * kLog2E);
  const Vec inner = broadcast(kCapped ? a.block.scale / a.block.softcap : 0.0f);
  const auto row = [&](std::int64_t k, std::int64_t j, Vec& p, Vec& ds) {
    Vec score = load(s.scores + (r + k) * kKeyBlock + j), slope = factor;
    const Vec dprob = load(s.dprobs + (r + k) * kKeyBlock + j);
    if constexpr (kCapped) {
      const Tanh t = tanh(score * inner);
      score = t.value, slope = t.slope * factor;
    }
    p = exp2(fma(score, power, broadcast(-s.row_max[i + k])));
    ds = p * (dprob - broadcast(s.row_sum[i + k])) * slope;
    if (seen[k].end - j < kLanes || seen[k].begin > j) {
      p = where_seen(seen[k].begin, seen[k].end, j, p, zero());
      ds = where_seen(seen[k].begin, seen[k].end, j, ds, zero());
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
  const std::int64_t query_words = kQueryBlock / kPerWord<T>;
  const Word* paired = kPerWord<T> == 2 ? s.dscores_paired : s.dscores;
  const std::int64_t end = u.end_of(first_query + queries - 1);
  for (std::int64_t i = 0; i < queries; i += kTileRows) {
    const std::int64_t rows = smaller(kTileRows, queries - i), query = first_query + i;
    if (u.end_of(query + rows - 1) <= u.begin_of(query))
      std::memset(s.sums + i * u.key.E16, 0, static_cast<std::size_t>(rows * u.key.E16) * sizeof(float));
  }
  for (std::int64_t first = u.begin_of(first_query) / kPanel * kPanel; first < end; first += kKeyBlock) {
    for (std::int64_t i = 0; i < queries; i += kTileRows) {
      const std::int64_t rows = smaller(kTileRows, queries - i), query = first_query + i;
      const std::int64_t begin = u.begin_of(query);  // no row of the six sees an earlier key
      const std::int64_t keys = smaller(kKeyBlock, u.end_of(query + rows - 1) - first);
      if (keys <= 0 || begin >= first + kKeyBlock) continue;
      // dk and dv are computed for six keys at a time, so five keys beyond the last one seen must read as
      // zero.
      const std::int64_t width = smaller(kKeyBlock, round_up(keys + kTileRows - 1, kLanes));
      score<T>(u.key, s.queries + i * u.key.words, s.keys_by_head, first, keys, s.scores);
      score<T>(u.value, s.douts + i * u.value.words, s.values_by_head, first, keys, s.dprobs);
      for (std::int64_t r = 0; r < rows; r += 2) {
        KeyRange seen[2];
        for (std::int64_t k = 0; k < 2 && r + k < rows; ++k)
          seen[k] = {u.begin_of(query + r + k) - first, smaller(keys, u.end_of(query + r + k) - first)};
        if (a.block.softcap > 0) differentiate<T, true>(a, s, i + r, r, seen, width);
        else differentiate<T, false>(a, s, i + r, r, seen, width);
      }
      combine<T>(u.key, s.dscores + i * kKeyStride / kPerWord<T>, {kKeyStride / kPerWord<T>, 1}, s.keys,
                 u.key_words, words_of<T>(first), words_of<T>(smaller(round_up(keys, kLanes), kKeyBlock)),
                 s.sums + i * u.key.E16, rows, begin >= first ? WriteMode::assign : WriteMode::accumulate);
    }
    const std::int64_t keys = smaller(kKeyBlock, end - first);
    for (std::int64_t j = 0; j < keys; j += kTileRows) {
      const std::int64_t rows = smaller(kTileRows, keys - j), key = first + j;
      // Rows of the block before `from` do not see these keys yet, and rows from `to` on no longer see them.
      const std::int64_t from = larger(0, key - u.end_shift + 1 - first_query),
                         to = smaller(queries, key + rows - u.begin_shift - first_query);
      const std::int64_t unseen = from / kPerWord<T>, words = words_of<T>(to) - unseen;
      if (to <= from) continue;
      float* dv = s.dvalues + key * u.value.E16;
      float* dk = s.dkeys + key * u.key.E16;
      combine<T>(u.value, s.probs + unseen * kKeyStride + j, {1, kKeyStride}, s.douts_packed, query_words,
                 unseen, words, dv, rows, WriteMode::accumulate);
      combine<T>(u.key, paired + unseen * kKeyStride + j, {1, kKeyStride}, s.queries_packed, query_words,
                 unseen, words, dk, rows, WriteMode::accumulate);
    }
  }
}

/// Writes `count` rows of a head, starting at row `row`, from fp32 rows of E16.
void write_rows(const HeadView& x, std::int64_t row, std::int64_t head, const float* rows, std::int64_t count,
                WriteMode mode) {
  with_type(x.dtype, [&]<class O>(O) {
    O* out = at<O>(x, row, head);
    for (std::int64_t i = 0; i < count; ++i, out += x.row_stride, rows += round_up(x.head_size, kLanes))
      for_each_vec(x.head_size, [&](auto load, auto store) {
        store(out, mode == WriteMode::accumulate ? load(out) + load(rows) : load(rows));
      });
  });
}

void zero_rows(const HeadView& x, std::int64_t row, std::int64_t head, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    std::memset(x.data + ((row + i) * x.row_stride + head * x.head_size) * size_of(x.dtype), 0,
                static_cast<std::size_t>(x.head_size * size_of(x.dtype)));
}

/// Writes dk or dv of a sequence; keys that no query sees get a zero gradient.
void write_keys(const HeadView& x, const Unit& u, const AttentionUnit& unit, const float* rows,
                WriteMode mode) {
  const std::int64_t first = unit.first_key + u.first_key;
  write_rows(x, first, unit.kv_head, rows, u.keys, mode);
  if (mode == WriteMode::accumulate) return;
  zero_rows(x, unit.first_key, unit.kv_head, u.first_key);
  zero_rows(x, first + u.keys, unit.kv_head, unit.keys - u.first_key - u.keys);
}

/// Computes the sum of dout * out, and converts the log-sum-exp, for a block's rows; zeros up to a whole
/// pair.
template <class T>
void row_numbers(const AttentionBackward& a, const Unit& u, const AttentionScratch& s, std::int64_t row,
                 std::int64_t head, std::int64_t queries) {
  const float* lse = reinterpret_cast<const float*>(a.lse_HT.data) + head * a.lse_HT.shape[1] + row;
  const T* dout = at<const T>(a.dout_THE, row, head);
  with_type(a.out_THE.dtype, [&]<class O>(O) {
    const O* out = at<const O>(a.out_THE, row, head);
    for (std::int64_t i = 0; i < round_up(queries, 2); ++i) {
      Vec product = zero();
      if (i < queries)
        for_each_vec(u.value.E, [&](auto load, auto) {
          product += load(dout + i * a.dout_THE.row_stride) * load(out + i * a.out_THE.row_stride);
        });
      s.row_sum[i] = sum(product);
      s.row_max[i] = i < queries ? lse[i] * kLog2E : 0.0f;
    }
  });
}

template <class T>
void backward(const AttentionBackward& a, const AttentionUnit& unit, const AttentionScratch& s) {
  const Unit u = unit_of<T>(a.block, unit, s);
  const HeadGeometry& heads = a.block.heads;
  const std::int64_t group = heads.heads / heads.kv_heads, key = unit.first_key + u.first_key;
  const std::int64_t panel_words = kQueryBlock / kPerWord<T> * kPanel;
  const T *k = at<const T>(a.k_TKE, key, unit.kv_head), *v = at<const T>(a.v_TKE, key, unit.kv_head);
  pack_by_head(u, u.key, k, a.k_TKE.row_stride, s.keys_by_head);
  pack_by_head(u, u.value, v, a.v_TKE.row_stride, s.values_by_head);
  pack_by_key(u, u.key, k, a.k_TKE.row_stride, s.keys);
  std::memset(s.dkeys, 0, static_cast<std::size_t>(u.keys * u.key.E16) * sizeof(float));
  std::memset(s.dvalues, 0, static_cast<std::size_t>(u.keys * u.value.E16) * sizeof(float));
  for (std::int64_t head = unit.kv_head * group; head < (unit.kv_head + 1) * group; ++head)
    for (std::int64_t query = 0; query < u.queries; query += kQueryBlock) {
      const std::int64_t queries = smaller(kQueryBlock, u.queries - query), row = unit.first_query + query;
      const T *q = at<const T>(a.q_THE, row, head), *dout = at<const T>(a.dout_THE, row, head);
      copy_rows(u.key, q, a.q_THE.row_stride, queries, s.queries);
      copy_rows(u.value, dout, a.dout_THE.row_stride, queries, s.douts);
      pack_rows(q, a.q_THE.row_stride, queries, u.key.E, kPanel, s.queries_packed, panel_words);
      pack_rows(dout, a.dout_THE.row_stride, queries, u.value.E, kPanel, s.douts_packed, panel_words);
      row_numbers<T>(a, u, s, row, head, queries);
      backward_block<Packed<T>>(a, u, s, query, queries);
      write_rows(a.dq_THE, row, head, s.sums, queries, a.dq_mode);
    }
  write_keys(a.dk_TKE, u, unit, s.dkeys, a.dkv_mode);
  write_keys(a.dv_TKE, u, unit, s.dvalues, a.dkv_mode);
}

}  // namespace

const AttentionKernels& attention_kernels() {
  static constexpr AttentionKernels kKernels{
      .forward =
          [](const AttentionForward& a, const AttentionUnit& unit, const AttentionScratch& s) {
            with_type(a.q_THE.dtype, [&]<class T>(T) { forward<T>(a, unit, s); });
          },
      .backward =
          [](const AttentionBackward& a, const AttentionUnit& unit, const AttentionScratch& s) {
            with_type(a.q_THE.dtype, [&]<class T>(T) { backward<T>(a, unit, s); });
          },
  };
  return kKernels;
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
