#include "io/prepare/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <span>
#include <utility>

#include "io/hash/hash.h"
#include "io/tokens/file_kind.h"
#include "io/tokens/file_list.h"
#include "io/tokens/token_layout.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

// Input bytes per part. A few hundred parts keep all cores busy, and a kill loses little work.
constexpr std::int64_t kSmallestPart = 16 << 20, kLargestPart = 1 << 30, kParts = 256;

DocumentKind kind_of(const std::string& path, const PrepareOptions& options) {
  const bool lines = options.format == InputFormat::json_lines ||
                     (options.format == InputFormat::automatic && is_json_lines(path));
  if (lines) return DocumentKind::json_lines;
  if (options.format == InputFormat::automatic && path.ends_with(".json"))
    throw base::data_error(path +
                           ": a .json file may be JSON lines or one text: say which by --format jsonl or "
                           "--format text");
  if (options.chat || options.pairs || !options.completion.empty())
    throw base::data_error(path + ": " +
                           (options.pairs  ? "--pairs"
                            : options.chat ? "--chat"
                                           : "--completion") +
                           " reads JSON lines: a .jsonl file, or --format jsonl");
  return options.split == TextSplit::paragraphs ? DocumentKind::paragraphs : DocumentKind::file;
}

void refuse_what_is_no_text(const std::string& path, std::span<const std::byte> head, std::int64_t bytes) {
  const auto foreign = foreign_kind(head, bytes);
  if (path.ends_with(".parquet") || (foreign && foreign->what.find("Parquet") != std::string::npos))
    throw base::data_error(
        path +
        ": this is a Parquet file, which is not read: write it as JSON lines first (DuckDB: "
        "COPY (SELECT text FROM 'x.parquet') TO 'x.jsonl'; or pandas: to_json(lines=True))");
  if (foreign)
    throw base::data_error(path + ": this is " + foreign->what +
                           ", not text or JSON lines: unpack or convert it first, or take it off the list");
  const auto starts = [&](unsigned first, unsigned second) {
    return head.size() >= 2 && std::to_integer<unsigned>(head[0]) == first &&
           std::to_integer<unsigned>(head[1]) == second;
  };
  if (starts(0xff, 0xfe) || starts(0xfe, 0xff))
    throw base::data_error(path + ": this is text in UTF-16: convert it first (iconv -f UTF-16 -t UTF-8)");
  if (has_token_magic(head))
    throw base::data_error(path + ": this is a token file already; train on it as it is");
}

InputFile look_at(const std::string& path, const PrepareOptions& options) {
  const DataFile file = options.files.open(path);
  if (!file) throw base::data_error(path + ": cannot be opened: " + base::errno_text(ENOENT));
  const FileStamp stamp = stamp_of(path, options.files);
  std::array<std::byte, 1024> head{};
  const std::int64_t got = file.read(0, head);
  refuse_what_is_no_text(path, std::span(head).first(static_cast<std::size_t>(got)), stamp.bytes);
  return {path, stamp, kind_of(path, options)};
}

// A power of two, so that a small change of the inputs leaves most parts unchanged.
std::int64_t part_bytes(std::int64_t total) {
  const auto wanted = static_cast<std::uint64_t>(std::clamp(total / kParts, kSmallestPart, kLargestPart));
  return static_cast<std::int64_t>(std::bit_floor(wanted));
}

std::string hash_of(const std::string& text) { return xxh3_hex(std::as_bytes(std::span(text))); }

}  // namespace

std::vector<InputFile> list_inputs(const PrepareOptions& options) {
  std::vector<InputFile> inputs;
  for (const ListedFile& file : list_files(options.inputs, options.files)) {
    InputFile input = look_at(file.path, options);
    if (input.stamp.bytes == 0 && file.named)
      throw base::data_error(file.path +
                             ": the file is empty: name one that holds text, or take it off the list");
    if (input.stamp.bytes > 0) inputs.push_back(std::move(input));
  }
  if (inputs.empty()) throw base::data_error("all files of the inputs are empty");
  return inputs;
}

std::vector<Part> make_parts(const std::vector<InputFile>& inputs, const std::string& settings,
                             const DataFiles& files) {
  std::int64_t total = 0;
  for (const InputFile& input : inputs) total += input.stamp.bytes;
  const std::int64_t most = part_bytes(total);
  std::vector<Part> parts;
  Part part;
  std::string described = settings;
  const auto end_part = [&] {
    if (part.ranges.empty()) return;
    part.key = hash_of(described);
    parts.push_back(std::exchange(part, {}));
    described = settings;
  };
  for (const InputFile& input : inputs) {
    for (std::int64_t begin = 0; begin < input.stamp.bytes;) {
      const std::int64_t end =
          next_document_start(input.path, input.kind, begin + most - part.bytes, input.stamp.bytes, files);
      part.ranges.push_back({input.path, input.kind, begin, end, input.stamp, files});
      part.bytes += end - begin;
      described += fmt::format("\n{}\n{} {} {} {} {}", input.path, input.stamp.bytes, input.stamp.modified_ns,
                               static_cast<int>(input.kind), begin, end);
      if (!input.stamp.version.empty()) described += " " + input.stamp.version;
      begin = end;
      if (part.bytes >= most) end_part();
    }
  }
  end_part();
  return parts;
}

}  // namespace trainerd::io
