#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/source_files.h"

namespace trainerd::io {

/// Which documents of the files a stream of tokens is made of.
enum class DataPart : unsigned char { all, training, validation };

/// Tokens that follow each other in a file and in the stream.
struct Stretch {
  std::int64_t first = 0;  ///< the stream's position
  std::size_t file = 0;
  std::int64_t begin = 0;  ///< the file's position
  std::int64_t tokens = 0;

  bool operator==(const Stretch&) const = default;
};

/// Whether a document is for validation: a fraction of all are, by a hash of the document's number in its
/// file and the file's name without its folder. So it does not depend on the other documents or files, nor on
/// the job's seed.
bool is_validation_document(const std::string& path, std::int64_t document, double fraction);

/// Calls `visit` for every document of the same stream, in order, with its place there. Throws DataError for
/// a file that does not say where its documents begin, which says that `key` needs it.
void each_document_of(std::span<const SourceFile> files, DataPart part, double fraction, const char* key,
                      const std::function<void(std::int64_t position, std::int64_t tokens)>& visit);

/// The stream that the files make, one after the other: of all tokens, or of the documents of one part. A
/// split has about 2 x fraction x documents stretches of 32 bytes. Throws DataError for a file that does not
/// say where its documents begin, where `part` is not all.
std::vector<Stretch> stretches_of(std::span<const SourceFile> files, DataPart part, double fraction);

}  // namespace trainerd::io
