#pragma once

#include <cstdint>

#include "kernels/ops/elementwise.h"

namespace trainerd::parallel {

/// The part of each sequence that a context-parallel rank computes: chunks `rank` and 2 `ranks` - 1 - `rank`
/// of its 2 `ranks` chunks (kernels::RowOrder). With one rank: the whole sequence.
///
/// The rank's rows of a microbatch are ordered [first or second chunk][sequence][row]; with one rank
/// [sequence][row].
struct SequenceShare {
  std::int64_t seq_len = 0;
  std::int64_t ranks = 1, rank = 0;

  bool whole() const { return ranks == 1; }
  std::int64_t rows() const { return seq_len / ranks; }
  /// Pieces of consecutive positions in a sequence: two, or one with one rank.
  int pieces() const { return whole() ? 1 : 2; }
  std::int64_t piece_rows() const { return rows() / pieces(); }
  /// Position in the sequence of a piece's first row.
  std::int64_t first(int piece) const {
    return whole() ? 0 : (piece == 0 ? rank : 2 * ranks - 1 - rank) * piece_rows();
  }
  /// Among the tokens of `sequences` consecutive sequences, the number of the token in a row of the rank.
  std::int64_t token(std::int64_t row, std::int64_t sequences) const {
    const std::int64_t run = row / piece_rows(), sequence = run % sequences;
    return sequence * seq_len + first(static_cast<int>(run / sequences)) + row % piece_rows();
  }

  bool operator==(const SequenceShare&) const = default;
};

}  // namespace trainerd::parallel
