#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/source_files.h"

namespace trainerd::io {

/// The documents that belong to a stream of tokens.
enum class DataPart : unsigned char { all, training, validation };

/// A run of tokens that is contiguous in a file and in the stream.
struct Stretch {
  std::int64_t first = 0;  ///< position in the stream
  std::size_t file = 0;
  std::int64_t begin = 0;  ///< position in the file
  std::int64_t tokens = 0;

  bool operator==(const Stretch&) const = default;
};

/// Returns whether a document belongs to the validation set, to which `fraction` of all documents belong. The
/// choice is a hash of the document's number in its file and the file's name without its folder. It does not
/// depend on other documents, other files or the job's seed.
bool is_validation_document(const std::string& path, std::int64_t document, double fraction);

/// Calls `visit` for every document of the stream, in order, with its position in the stream. Throws
/// DataError for a file without an index; the message names `key` as the reason.
void each_document_of(std::span<const SourceFile> files, DataPart part, double fraction, const char* key,
                      const std::function<void(std::int64_t position, std::int64_t tokens)>& visit);

/// Returns the stream of `files`, in order: all tokens, or the documents of one part. A split has about 2 x
/// fraction x documents stretches of 32 bytes each. Throws DataError for a file without an index, unless
/// `part` is all.
std::vector<Stretch> stretches_of(std::span<const SourceFile> files, DataPart part, double fraction);

}  // namespace trainerd::io
