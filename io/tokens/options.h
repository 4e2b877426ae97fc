#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainerd::io {

enum class DataFormat : std::uint8_t { text, tokens, synthetic };
/// Type of the ids in a token file. automatic: taken from the file's header or its index. int8 and int16
/// occur only with an index.
enum class TokenType : std::uint8_t { automatic, uint8, uint16, int32, uint32, int8, int16, int64 };
/// Bytes per id; not defined for `automatic`.
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

/// What a resumed run does when its training data differs from the checkpoint's.
enum class DataChange : std::uint8_t { refuse, go_on };

/// What a run does when its data was made with another tokenizer file than its model's.
enum class OtherTokenizer : std::uint8_t { refuse, allow };

/// One source of a blend.
struct DataSource {
  std::vector<std::string> path;       ///< as DataOptions::train
  double weight = 0;                   ///< more than 0, in any unit
  double epochs = 0;                   ///< most passes over it; 0: no limit
  std::int64_t tokens = 0;             ///< most tokens taken from it; 0: no limit
  std::vector<std::string> mask = {};  ///< as DataOptions::mask

  bool operator==(const DataSource&) const = default;
};

/// How documents become samples: concatenated and cut, packed so that few documents are cut, or one pair of
/// documents per sample (see packing.h).
enum class Packing : std::uint8_t { concatenate, best_fit, pairs };

/// Validation data with its own loss.
struct ValidationSet {
  std::string name;               ///< names its loss in all output
  std::vector<std::string> path;  ///< as DataOptions::train
  std::vector<std::string> mask = {};
  std::int64_t batches = 0;  ///< global batches per evaluation; 0: evaluate.batches

  bool operator==(const ValidationSet&) const = default;
};

struct DataOptions {
  /// Files, directories (every regular file below, in sorted order) or glob patterns.
  std::vector<std::string> train;
  std::vector<DataSource> sources = {};        ///< a blend, used instead of `train`
  std::vector<std::string> valid;              ///< short form of one set without a name
  std::vector<ValidationSet> valid_sets = {};  ///< in addition to `valid`, or instead of it
  /// Loss masks of `train` and `valid`: one per token file, in their order (see mask_files.h). If empty, the
  /// dataset.json of token files decides.
  std::vector<std::string> mask = {}, valid_mask = {};
  Packing packing = Packing::concatenate;
  /// Attention stays inside documents. A sample then has at most `max_documents` documents.
  bool document_mask = false;
  std::int64_t max_documents = 0;  ///< the job's default depends on seq_len
  bool reset_positions = false;    ///< positions restart at 0 in each document
  /// Token that ends a document, for files without an index; kNoToken: none.
  std::int64_t end_token = kNoToken;
  static constexpr std::int64_t kNoToken = -1;
  double valid_fraction = 0;  ///< instead of `valid`: fraction of the training documents
  DataFormat format = DataFormat::text;
  std::string tokenizer = "bytes";  ///< for `text`: one token per byte
  TokenType dtype = TokenType::automatic;
  DataChange on_change = DataChange::refuse;
  OtherTokenizer other_tokenizer = OtherTokenizer::refuse;
  std::int64_t prefetch = 16;  ///< microbatches that each rank reads ahead; 0: no prefetch
  /// Directory on this node that caches blocks of s3:// objects; empty: default_cache_directory().
  std::string cache_directory = {};
  std::int64_t cache_bytes = std::int64_t{8} << 30;  ///< most bytes in the cache; 0: no cache

  bool operator==(const DataOptions&) const = default;
};

/// Name of the set made by `valid`, `valid_fraction` or synthetic tokens, if there are other sets too.
inline constexpr const char* kUnnamedSet = "valid";
/// Returns all validation sets of a job, the unnamed set first. Its `path` is empty unless it comes from
/// `valid`. If there are named sets, it gets the name kUnnamedSet.
std::vector<ValidationSet> validation_sets(const DataOptions& data);

}  // namespace trainerd::io
