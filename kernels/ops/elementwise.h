#pragma once

// Arguments of operators: elementwise and rows. See ops.h.

#include <cstdint>

#include "kernels/ops/op_class.h"

namespace trainerd::kernels {

/// out = a + b. They may be the same tensor.
struct Add {
  Tensor a;
  Tensor b;
  Tensor out;

  bool operator==(const Add&) const = default;
};
/// out = x * factor; `out` may be `x`.
struct Scale {
  Tensor x;
  float factor = 1.0f;
  Tensor out;

  bool operator==(const Scale&) const = default;
};
/// out = in, in the dtype of `out`, rounded to nearest even.
struct Cast {
  Tensor in;
  Tensor out;

  bool operator==(const Cast&) const = default;
};

/// out[i] = x[i] / (1 - rate), or 0 if the element is dropped (inverted dropout; Srivastava et al., JMLR 15,
/// 2014). An element is dropped if `dropout_bits` (kernels/tensor/rng.h) of `key` and `first` + i are below
/// `dropout_threshold(rate)`. `out` may be `x`. The same call on a gradient is the backward.
struct Dropout {
  Tensor x;  ///< fp32, bf16 or fp16
  Tensor out;
  float rate = 0;  ///< below 1, in steps of 1 / 65536
  std::uint64_t key = 0;
  std::uint64_t first = 0;  ///< index of element 0 among the elements of `key`

  bool operator==(const Dropout&) const = default;
};

/// out (+)= x[0] + x[1] + ..., in that order, each addition in fp32. The previous `out` is added last. A bf16
/// `out` is rounded once, to nearest even.
struct SumParts {
  Tensor x;            ///< fp32, bf16 or fp16: parts of the size of `out`, concatenated
  Tensor out;          ///< the same, bf16 and fp16 not mixed; must not overlap `x`
  std::int64_t parts;  ///< at least 1
  WriteMode mode = WriteMode::assign;

  bool operator==(const SumParts&) const = default;
};

/// Two orders of the rows of sequences whose chunks are dealt to R ranks. Each sequence has 2 R chunks of the
/// same size; rank r has chunks r and 2 R - 1 - r, so that all ranks have the same work under a causal mask.
/// By sequence: [sequence][chunk][row]. By rank: [rank][first or second chunk][sequence][row].
enum class RowOrder : std::uint8_t { kept, rank_to_sequence, sequence_to_rank };

/// Number of rows of a chunk, if `rows` rows of `sequences` sequences are dealt to `ranks` ranks.
constexpr std::int64_t dealt_chunk_rows(std::int64_t rows, std::int64_t ranks, std::int64_t sequences) {
  return rows / (2 * ranks * sequences);
}
/// Row in the order by rank of row `row` in the order by sequence.
constexpr std::int64_t dealt_row(std::int64_t row, std::int64_t ranks, std::int64_t sequences,
                                 std::int64_t chunk_rows) {
  const std::int64_t chunks = 2 * ranks, sequence = row / chunk_rows / chunks,
                     chunk = row / chunk_rows % chunks, second = chunk < ranks ? 0 : 1,
                     rank = second == 0 ? chunk : chunks - 1 - chunk;
  return ((rank * 2 + second) * sequences + sequence) * chunk_rows + row % chunk_rows;
}
/// The inverse of `dealt_row`.
constexpr std::int64_t undealt_row(std::int64_t row, std::int64_t ranks, std::int64_t sequences,
                                   std::int64_t chunk_rows) {
  const std::int64_t part = row / chunk_rows, sequence = part % sequences, second = part / sequences % 2,
                     rank = part / sequences / 2, chunk = second == 0 ? rank : 2 * ranks - 1 - rank;
  return (sequence * 2 * ranks + chunk) * chunk_rows + row % chunk_rows;
}

/// Copies `columns` columns of all rows, in the dtype of `out` (rounded to nearest even). With another order
/// than `kept`, `in` has its rows in the one order and `out` in the other.
struct CopyRows {
  Tensor in;   ///< fp32, bf16 or fp16, two dims
  Tensor out;  ///< the same, bf16 and fp16 not mixed, as many rows; must not overlap `in`
  std::int64_t columns = 0;
  std::int64_t in_column = 0, out_column = 0;  ///< the first column that is read, and written
  RowOrder order = RowOrder::kept;
  std::int64_t ranks = 1, sequences = 1;  ///< of the order

  bool operator==(const CopyRows&) const = default;
};
/// Throws std::logic_error if the shapes do not match. Every backend calls it, including the meta backend.
inline void check_args(const CopyRows& a) {
  const auto has = [&](const Tensor& x, std::int64_t column) {
    return x.shape.ndim == 2 && column >= 0 && column + a.columns <= x.size(1);
  };
  check_not_mixed(a.in.dtype, a.out.dtype);
  base::check(
      has(a.in, a.in_column) && has(a.out, a.out_column) && a.columns > 0 && a.in.size(0) == a.out.size(0),
      "copy_rows: both have the rows and columns");
  base::check(a.ranks >= 1 && a.sequences >= 1 &&
                  (a.order == RowOrder::kept || a.in.size(0) % (2 * a.ranks * a.sequences) == 0),
              "copy_rows: sequences consist of 2 chunks per rank");
}

inline OpClass op_class(const CopyRows& a) { return memory_class(a.out); }
inline OpClass op_class(const Add& a) { return memory_class(a.out); }
inline OpClass op_class(const Scale& a) { return memory_class(a.x); }
inline OpClass op_class(const Cast& a) { return memory_class(a.out); }
inline OpClass op_class(const Dropout& a) { return memory_class(a.x); }
inline OpClass op_class(const SumParts& a) { return memory_class(a.out); }

}  // namespace trainerd::kernels
