#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/chat/chat_json.h"
#include "io/files/data_files.h"

namespace trainerd::io {

/// How documents are stored in a file.
enum class DocumentKind : std::uint8_t {
  file,        ///< the whole file is one document
  paragraphs,  ///< text between blank lines, without these and without the last line end
  json_lines   ///< one text in the JSON object on each line; blank lines are skipped
};

/// Which part of a JSON line is the document.
struct LineForm {
  std::string field = "text";        ///< key of a text, of messages or of a prompt
  std::string completion;            ///< key of the completion, if `field` is a prompt; else empty
  std::optional<ChatTemplate> chat;  ///< `field` holds messages
  /// A line holds two documents, the chosen and the rejected answer (see chat_json.h); with `chat` as
  /// messages.
  bool pairs = false;
  TemplateTokens tokens;   ///< the tokenizer's tokens that a template writes
  NormalForm normal_form;  ///< the tokenizer's
};

struct InputDocument {
  std::string_view text;
  std::int64_t offset = 0;                         ///< byte offset in the file
  const std::vector<TextSpan>* learned = nullptr;  ///< parts whose tokens count in the loss; null: all
};

/// Detects whether a file has changed since it was listed.
struct FileStamp {
  std::int64_t bytes = 0;
  std::int64_t modified_ns = 0;  ///< nanoseconds since 1970; 0 for an object
  std::string version = {};      ///< DataFile::version

  bool operator==(const FileStamp&) const = default;
};
/// Throws DataError.
FileStamp stamp_of(const std::string& path, const DataFiles& files = {});

/// The documents that begin in bytes [begin, end) of a file. A document may begin at both positions.
struct DocumentRange {
  std::string path;
  DocumentKind kind = DocumentKind::file;
  std::int64_t begin = 0, end = 0;
  FileStamp stamp = {};  ///< of the file when it was listed
  DataFiles files = {};  ///< opens the file
};

/// Returns "FILE, line 3" for a position in a file.
std::string place_in(const std::string& path, std::int64_t offset, const DataFiles& files = {});

/// Returns the first position at `from` or later where a document may begin; `file_bytes` if there is none.
/// Throws DataError.
std::int64_t next_document_start(const std::string& path, DocumentKind kind, std::int64_t from,
                                 std::int64_t file_bytes, const DataFiles& files = {});

/// Calls `take` for each document, in order. Throws DataError naming the file and the line or byte: invalid
/// UTF-8 or JSON, a missing field, a document of 2 GiB or more, or a file that changed since it was listed.
void read_documents(const DocumentRange& range, const LineForm& form,
                    const std::function<void(const InputDocument&)>& take);

}  // namespace trainerd::io
