#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace trainerd::io {

/// How a file's documents lie in it.
enum class DocumentKind : std::uint8_t {
  file,        ///< the file is one
  paragraphs,  ///< the parts between blank lines, without these and without the last line's end
  json_lines   ///< a text in the object on each line; lines of white space alone are skipped
};

/// Documents that begin in bytes [begin, end) of a file. Both lie where a document may begin.
struct DocumentRange {
  std::string path;
  DocumentKind kind = DocumentKind::file;
  std::int64_t begin = 0, end = 0;
};

/// The first place at `from` or later where a range of such a file may begin; `file_bytes` where none does.
/// Throws DataError.
std::int64_t next_document_start(const std::string& path, DocumentKind kind, std::int64_t from,
                                 std::int64_t file_bytes);

/// Gives each document's text to `take`, in order. `field` is the key of a JSON line's text. Throws DataError
/// naming the file and the line, or byte: no valid UTF-8, no JSON, no such field, a document of 2 GiB or
/// more.
void read_documents(const DocumentRange& range, const std::string& field,
                    const std::function<void(std::string_view)>& take);

}  // namespace trainerd::io
