#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace trainerd::io {

/// A part of a document in a packed sequence: tokens [position, position + tokens) of the stream.
struct PackedPiece {
  std::int64_t position = 0;
  std::int64_t tokens = 0;

  bool operator==(const PackedPiece&) const = default;
};

/// Packs documents into sequences of seq_len + 1 tokens (seq_len predictions) and cuts as few as possible:
/// best-fit decreasing, after Ding et al., "Fewer Truncations Improve Language Modeling" (2024), section 3. A
/// longer document fills whole sequences. Each of these begins with the last token of the one before it, so
/// every token except a document's first is predicted once. The rest is packed like a short document. Pieces
/// are placed longest first, each into the fullest sequence that has room for it.
///
/// The result depends only on the documents' lengths and the options. Sequences are numbered by the first
/// document that they hold; their pieces are in stream order. Keeps 16 bytes per piece and 8 per sequence,
/// and takes 24 bytes per piece during construction.
class PackedSequences {
 public:
  struct Options {
    std::int64_t seq_len = 0;
    std::int64_t most_pieces = 0;  ///< most pieces per sequence; 0: no limit
    std::uint64_t key = 0;         ///< shuffles documents of equal length
  };
  using Visit = std::function<void(std::int64_t position, std::int64_t tokens)>;
  /// `each_document` must call its argument for every document of the stream, in order. Documents of fewer
  /// than two tokens have no prediction and are skipped. Throws DataError if the number of pieces exceeds 32
  /// bits.
  PackedSequences(const std::function<void(const Visit&)>& each_document, const Options& options);
  /// Makes one sequence of each pair of consecutive documents, in stream order. Throws DataError for an odd
  /// number of documents, a document of fewer than two tokens, or a pair of more than seq_len + 1 tokens.
  static PackedSequences of_pairs(const std::function<void(const Visit&)>& each_document,
                                  std::int64_t seq_len);

  std::int64_t count() const { return static_cast<std::int64_t>(first_.size()) - 1; }
  /// Returns the pieces of sequence `number`, in [0, count()).
  void pieces_of(std::int64_t number, std::vector<PackedPiece>& pieces) const;
  /// Number of pieces in all sequences.
  std::int64_t pieces() const { return static_cast<std::int64_t>(position_.size()); }
  /// Number of predicted tokens, at most count() x seq_len.
  std::int64_t predicted() const { return predicted_; }
  /// Number of documents that are split into several pieces.
  std::int64_t cut_documents() const { return cut_documents_; }
  /// Number of sequences with `most_pieces` pieces and room for another piece.
  std::int64_t limited() const { return limited_; }

 private:
  PackedSequences() = default;
  void add_document(std::int64_t position, std::int64_t tokens, std::int64_t seq_len);
  std::vector<std::uint32_t> longest_first(const Options& options) const;
  std::vector<std::uint32_t> pack(const Options& options);
  void number_sequences(std::vector<std::uint32_t> bin_of);

  // One entry per piece, in stream order.
  std::vector<std::int64_t> position_;
  std::vector<std::uint32_t> tokens_;
  std::vector<std::uint32_t> pieces_;  ///< piece numbers, grouped by sequence
  std::vector<std::int64_t> first_;    ///< per sequence, its first entry in `pieces_`; then their number
  std::int64_t predicted_ = 0, cut_documents_ = 0, limited_ = 0;
};

}  // namespace trainerd::io
