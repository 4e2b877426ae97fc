#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "io/tokens/source_files.h"

namespace trainerd::io {

/// Where documents begin in the tokens of files: by their index, else behind each token that ends one. A file
/// begins one. Keeps 8 bytes for each document of files with an index.
class DocumentBoundaries {
 public:
  /// Reads the indices. `end_token`: DataOptions::end_token. Throws DataError naming a file that does not say
  /// where documents begin, where there is no end token; or what is wrong with its index.
  DocumentBoundaries(std::span<const SourceFile> files, std::int64_t end_token);

  /// Appends to `starts` which of `tokens` begin a document, counting from `first`; they are those of `file`
  /// from position `at` on. The first token behind them is counted too where the last of them ends a
  /// document; one that is the last of `starts` already is not put there again.
  void starts_in(std::size_t file, std::int64_t at, std::span<const std::int32_t> tokens, std::int32_t first,
                 std::vector<std::int32_t>& starts) const;

 private:
  std::vector<std::vector<std::int64_t>> starts_;  ///< by file; empty: by the end token
  std::int64_t end_token_;
};

}  // namespace trainerd::io
