#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainerd::io {

enum class DataFormat : std::uint8_t { text, tokens, synthetic };
/// Type of the ids in a token file. automatic: as the file's header or the index beside it says. The last
/// three are an index's alone.
enum class TokenType : std::uint8_t { automatic, uint8, uint16, int32, uint32, int8, int16, int64 };
/// Bytes of an id; not of `automatic`.
constexpr std::int64_t width_of(TokenType type) {
  switch (type) {
    case TokenType::uint8:
    case TokenType::int8: return 1;
    case TokenType::uint16:
    case TokenType::int16: return 2;
    case TokenType::int64: return 8;
    default: return 4;
  }
}

/// What a resumed run does when its training data is not the checkpoint's.
enum class DataChange : std::uint8_t { refuse, go_on };

/// What a run does whose data was made by another tokenizer file than its model's.
enum class OtherTokenizer : std::uint8_t { refuse, allow };

/// One source of a blend.
struct DataSource {
  std::vector<std::string> path;       ///< as DataOptions::train
  double weight = 0;                   ///< more than 0, in any unit
  double epochs = 0;                   ///< passes over it at most; 0: any number
  std::int64_t tokens = 0;             ///< of it at most; 0: any number
  std::vector<std::string> mask = {};  ///< as DataOptions::mask

  bool operator==(const DataSource&) const = default;
};

/// How documents become samples: as they follow each other, each sample as full of whole documents as they
/// allow, or each a pair of them (see packing.h).
enum class Packing : std::uint8_t { concatenate, best_fit, pairs };

/// Validation data with a loss of its own.
struct ValidationSet {
  std::string name;               ///< of its loss, wherever it is shown
  std::vector<std::string> path;  ///< as DataOptions::train
  std::vector<std::string> mask = {};
  std::int64_t batches = 0;  ///< global batches of an evaluation; 0: evaluate.batches

  bool operator==(const ValidationSet&) const = default;
};

struct DataOptions {
  /// Files, directories (every regular file below, in sorted order) or glob patterns.
  std::vector<std::string> train;
  std::vector<DataSource> sources = {};        ///< in place of `train`: a blend
  std::vector<std::string> valid;              ///< the short form of one set without a name
  std::vector<ValidationSet> valid_sets = {};  ///< beside it, or alone
  /// Loss masks of `train` and of `valid`, one for each file of tokens, in their order (see mask_files.h).
  /// Without: of token files what their dataset.json says.
  std::vector<std::string> mask = {}, valid_mask = {};
  Packing packing = Packing::concatenate;
  /// Attention stays inside documents, of which a sample has at most `max_documents`.
  bool document_mask = false;
  std::int64_t max_documents = 0;  ///< the job's default is made of seq_len
  bool reset_positions = false;    ///< positions begin anew with each document
  /// Token that ends a document, for files without an index; kNoToken: they do not say.
  std::int64_t end_token = kNoToken;
  static constexpr std::int64_t kNoToken = -1;
  double valid_fraction = 0;  ///< in place of `valid`: of the training data's documents
  DataFormat format = DataFormat::text;
  std::string tokenizer = "bytes";  ///< for `text`: one token a byte
  TokenType dtype = TokenType::automatic;
  DataChange on_change = DataChange::refuse;
  OtherTokenizer other_tokenizer = OtherTokenizer::refuse;
  std::int64_t prefetch = 16;  ///< microbatches that each rank reads ahead; 0: none
  /// Where blocks of objects at s3:// are kept on this node; empty: default_cache_directory().
  std::string cache_directory = {};
  std::int64_t cache_bytes = std::int64_t{8} << 30;  ///< of them at most; 0: none are kept

  bool operator==(const DataOptions&) const = default;
};

/// Name of the set that `valid`, `valid_fraction` or synthetic tokens are, beside others.
inline constexpr const char* kUnnamedSet = "valid";
/// All validation sets of a job: first the one without a name, where there is one, which has no `path` where
/// it is not of `valid`; then the others. Each has a name where there are several or it was given one.
std::vector<ValidationSet> validation_sets(const DataOptions& data);

}  // namespace trainerd::io
