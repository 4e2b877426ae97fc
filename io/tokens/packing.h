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

/// Documents packed into sequences of seq_len + 1 tokens (seq_len are predicted), so that no document
/// is cut without need: best-fit decreasing, after Ding et al., "Fewer Truncations Improve Language Modeling"
/// (2024), section 3. A longer document gives whole sequences, of which each begins with the last token of
/// the one before it, so that every token but a document's first is predicted once; what is left of it is
/// packed as a short document is: longest first, into the fullest sequence that has room for it.
///
/// A function of the documents' lengths and the options alone. Sequences are numbered by the first document
/// that they hold; their pieces are in the order of the stream. Keeps 16 bytes for each piece and 8 for each
/// sequence, and takes 24 for each piece at construction.
class PackedSequences {
 public:
  struct Options {
    std::int64_t seq_len = 0;
    std::int64_t most_pieces = 0;  ///< of a sequence; 0: any number
    std::uint64_t key = 0;         ///< shuffles documents of the same length
  };
  using Visit = std::function<void(std::int64_t position, std::int64_t tokens)>;
  /// `each_document` calls what it is given for every document of the stream, in order. Documents of fewer
  /// than two tokens have nothing to predict and are left out. Throws DataError for more pieces than 32 bits
  /// count.
  PackedSequences(const std::function<void(const Visit&)>& each_document, const Options& options);
  /// Each sequence is two documents that follow each other, in the order of the stream. Throws DataError: an
  /// odd number of documents, one of fewer than two tokens, two that have more than seq_len + 1 together.
  static PackedSequences of_pairs(const std::function<void(const Visit&)>& each_document,
                                  std::int64_t seq_len);

  std::int64_t count() const { return static_cast<std::int64_t>(first_.size()) - 1; }
  /// Of sequence `number`, less than count().
  void pieces_of(std::int64_t number, std::vector<PackedPiece>& pieces) const;
  /// Of all sequences.
  std::int64_t pieces() const { return static_cast<std::int64_t>(position_.size()); }
  /// Tokens that are predicted, of count() x seq_len.
  std::int64_t predicted() const { return predicted_; }
  /// Documents that are in more than one piece.
  std::int64_t cut_documents() const { return cut_documents_; }
  /// Sequences that have `most_pieces` and room for another.
  std::int64_t limited() const { return limited_; }

 private:
  PackedSequences() = default;
  void add_document(std::int64_t position, std::int64_t tokens, std::int64_t seq_len);
  std::vector<std::uint32_t> longest_first(const Options& options) const;
  std::vector<std::uint32_t> pack(const Options& options);
  void number_sequences(std::vector<std::uint32_t> bin_of);

  // By piece, in the order of the stream.
  std::vector<std::int64_t> position_;
  std::vector<std::uint32_t> tokens_;
  std::vector<std::uint32_t> pieces_;  ///< by sequence
  std::vector<std::int64_t> first_;    ///< of each sequence in `pieces_`, and their number
  std::int64_t predicted_ = 0, cut_documents_ = 0, limited_ = 0;
};

}  // namespace trainerd::io
