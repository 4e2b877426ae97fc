#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "io/tokens/source_files.h"

namespace trainerd::io {

/// Positions where documents begin in the files. They come from a file's index, else from the end tokens. The
/// start of a file begins a document. Keeps 8 bytes per document of files with an index.
class DocumentBoundaries {
 public:
  /// Reads the indices. `end_token`: DataOptions::end_token. Throws DataError naming a file that has no index
  /// when there is no end token, or a file whose index is invalid.
  DocumentBoundaries(std::span<const SourceFile> files, std::int64_t end_token);

  /// Appends to `starts` the positions of those `tokens` that begin a document. `tokens` are read from `file`
  /// at position `at`; the first of them has number `first`. If the last token ends a document, the position
  /// after it is appended too. A position that is already the last entry of `starts` is not repeated.
  void starts_in(std::size_t file, std::int64_t at, std::span<const std::int32_t> tokens, std::int32_t first,
                 std::vector<std::int32_t>& starts) const;

 private:
  std::vector<std::vector<std::int64_t>> starts_;  ///< per file; empty: the end token is used
  std::int64_t end_token_;
};

}  // namespace trainerd::io
