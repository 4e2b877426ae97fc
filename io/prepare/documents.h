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

/// How a file's documents lie in it.
enum class DocumentKind : std::uint8_t {
  file,        ///< the file is one
  paragraphs,  ///< the parts between blank lines, without these and without the last line's end
  json_lines   ///< a text in the object on each line; lines of white space alone are skipped
};

/// What of a JSON line is the document.
struct LineForm {
  std::string field = "text";        ///< the key of a text, of messages, or of a prompt
  std::string completion;            ///< with `field` the prompt: the key of what follows it; else empty
  std::optional<ChatTemplate> chat;  ///< `field` holds messages
  /// A line is two documents, the chosen and the rejected answer (see chat_json.h); with `chat` of messages.
  bool pairs = false;
  TemplateTokens tokens;   ///< of the tokenizer, that a template writes
  NormalForm normal_form;  ///< the tokenizer's
};

struct InputDocument {
  std::string_view text;
  std::int64_t offset = 0;                         ///< in the file
  const std::vector<TextSpan>* learned = nullptr;  ///< parts whose tokens count in the loss; null: all do
};

/// What says whether a file is still the one that was looked at.
struct FileStamp {
  std::int64_t bytes = 0;
  std::int64_t modified_ns = 0;  ///< since 1970; of an object 0
  std::string version = {};      ///< DataFile::version

  bool operator==(const FileStamp&) const = default;
};
/// Throws DataError.
FileStamp stamp_of(const std::string& path, const DataFiles& files = {});

/// Documents that begin in bytes [begin, end) of a file. Both lie where a document may begin.
struct DocumentRange {
  std::string path;
  DocumentKind kind = DocumentKind::file;
  std::int64_t begin = 0, end = 0;
  FileStamp stamp = {};  ///< of the file when it was looked at
  DataFiles files = {};  ///< what opens it
};

/// "FILE, line 3" of a place in a file.
std::string place_in(const std::string& path, std::int64_t offset, const DataFiles& files = {});

/// The first place at `from` or later where a range of such a file may begin; `file_bytes` where none does.
/// Throws DataError.
std::int64_t next_document_start(const std::string& path, DocumentKind kind, std::int64_t from,
                                 std::int64_t file_bytes, const DataFiles& files = {});

/// Gives each document to `take`, in order. Throws DataError naming the file and the line, or byte: no valid
/// UTF-8, no JSON, no such field, a document of 2 GiB or more; the file is not the one that was looked at, or
/// has changed meanwhile.
void read_documents(const DocumentRange& range, const LineForm& form,
                    const std::function<void(const InputDocument&)>& take);

}  // namespace trainerd::io
