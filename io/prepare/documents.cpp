#include "io/prepare/documents.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

#include "io/prepare/line_reader.h"
#include "io/text/json.h"
#include "io/text/json_field.h"
#include "io/text/utf8.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr std::int64_t kMaxDocumentBytes = (std::int64_t{1} << 31) - 1;

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

// `offset`: position of `text` in the file.
void check_text(const DocumentRange& range, std::int64_t offset, std::string_view text) {
  const std::string& path = range.path;
  if (const std::size_t bad = invalid_utf8(text); bad != std::string_view::npos)
    throw base::data_error(
        path + ", line " +
        std::to_string(line_number(path, offset, range.files) +
                       std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bad), '\n')) +
        ": byte " + std::to_string(offset + static_cast<std::int64_t>(bad)) +
        " is not UTF-8: convert the file (iconv -t UTF-8), or repair or remove what is there");
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    throw base::data_error(path + ": byte " + std::to_string(offset + static_cast<std::int64_t>(zero)) +
                           " is NUL: this is no text; take the file off the list, or convert it to UTF-8");
}

void read_file(const DocumentRange& range, const std::function<void(const InputDocument&)>& take) {
  if (range.end > kMaxDocumentBytes)
    throw base::data_error(range.path +
                           ": a document of 2 GiB or more: --split-documents makes one of each part between "
                           "blank lines, or split the file");
  constexpr std::int64_t kRead = std::int64_t{4} << 20;
  const DataFile file = range.files.open(range.path);
  if (!file) throw base::data_error(range.path + ": cannot be opened: " + base::errno_text(ENOENT));
  std::string text(static_cast<std::size_t>(range.end), '\0');
  const auto bytes = std::as_writable_bytes(std::span(text));
  for (std::int64_t at = 0; at < range.end; at += kRead) {
    const std::int64_t count = std::min(kRead, range.end - at);
    if (file.read_once(at, bytes.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count))) !=
        count)
      throw base::data_error(range.path +
                             ": the file became shorter while it was read; run the command again");
  }
  check_text(range, 0, text);
  take({.text = text});
}

void read_paragraphs(const DocumentRange& range, const std::function<void(const InputDocument&)>& take) {
  LineReader lines(range.path, range.begin, range.files);
  std::string document;
  std::int64_t offset = 0;
  const auto end_document = [&] {
    if (document.empty()) return;
    document.pop_back();
    if (document.ends_with('\r')) document.pop_back();
    check_text(range, offset, document);
    take({.text = document, .offset = offset});
    document.clear();
  };
  for (auto line = lines.next(); line && line->offset < range.end; line = lines.next()) {
    if (is_blank(line->text)) {
      end_document();
      continue;
    }
    if (document.empty()) offset = line->offset;
    document += line->text;
    document += '\n';
    if (document.size() > static_cast<std::size_t>(kMaxDocumentBytes))
      throw base::data_error(range.path + ": the document at byte " + std::to_string(offset) +
                             " has 2 GiB or more: no blank line ends it; split the file");
  }
  end_document();
}

// Returns the documents of a JSON line, with the spans that count.
std::vector<ChatText> texts_of_line(std::string_view line, const LineForm& form) {
  try {
    if (form.pairs) {
      ChatPair pair = form.chat ? read_chat_pair(line, *form.chat, form.normal_form, form.tokens)
                                : read_pair(line, form.normal_form);
      return {std::move(pair.chosen), std::move(pair.rejected)};
    }
    if (form.chat)
      return {render_chat(*form.chat, read_chat(line, form.field, form.normal_form), form.tokens)};
  } catch (const std::invalid_argument& error) {
    throw JsonError(error.what());
  }
  if (!form.completion.empty()) return {read_completion(line, form.field, form.completion, form.normal_form)};
  return {{.text = json_field(line, form.field), .assistant = {}}};
}

void read_json_lines(const DocumentRange& range, const LineForm& form,
                     const std::function<void(const InputDocument&)>& take) {
  const bool marks = form.chat || form.pairs || !form.completion.empty();
  LineReader lines(range.path, range.begin, range.files);
  for (auto line = lines.next(); line && line->offset < range.end; line = lines.next()) {
    if (is_blank(line->text)) continue;
    std::vector<ChatText> texts;
    try {
      texts = texts_of_line(line->text, form);
    } catch (const JsonError& error) {
      const std::string what = error.what();
      throw base::data_error(place_in(range.path, line->offset, range.files) + ": " + what +
                             (what.starts_with("not valid JSON") ? "; repair the line, or remove it" : ""));
    }
    for (const ChatText& text : texts)
      take({.text = text.text, .offset = line->offset, .learned = marks ? &text.assistant : nullptr});
  }
}

void check_unchanged(const DocumentRange& range) {
  if (stamp_of(range.path, range.files) != range.stamp)
    throw base::data_error(range.path +
                           ": the file was changed while the command worked on it: run the command again "
                           "when nothing writes to it");
}

}  // namespace

std::int64_t next_document_start(const std::string& path, DocumentKind kind, std::int64_t from,
                                 std::int64_t file_bytes, const DataFiles& files) {
  if (from <= 0) return 0;
  if (kind == DocumentKind::file || from >= file_bytes) return file_bytes;
  // Skips the rest of the line that contains byte from - 1; the next line begins behind it.
  LineReader lines(path, from - 1, files);
  lines.next();
  auto line = lines.next();
  if (kind == DocumentKind::paragraphs)
    while (line && !is_blank(line->text)) line = lines.next();
  return line ? line->offset : file_bytes;
}

FileStamp stamp_of(const std::string& path, const DataFiles& files) {
  if (is_s3(path)) {
    const DataFile file = files.open(path);
    if (!file) throw base::data_error(path + ": cannot be read: there is no such object");
    return {.bytes = file.bytes(), .modified_ns = 0, .version = file.version()};
  }
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    throw base::data_error(path + ": cannot be read: " + base::errno_text(errno));
  return {status.st_size, status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec};
}

std::string place_in(const std::string& path, std::int64_t offset, const DataFiles& files) {
  return path + ", line " + std::to_string(line_number(path, offset, files));
}

void read_documents(const DocumentRange& range, const LineForm& form,
                    const std::function<void(const InputDocument&)>& take) {
  check_unchanged(range);
  switch (range.kind) {
    case DocumentKind::file: read_file(range, take); break;
    case DocumentKind::paragraphs: read_paragraphs(range, take); break;
    case DocumentKind::json_lines: read_json_lines(range, form, take); break;
  }
  check_unchanged(range);
}

}  // namespace trainerd::io
