#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "io/text.h"
#include "io/tokens/file_list.h"
#include "io/tokens/token_layout.h"
#include "io/tokens/token_source.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;  // a multiple of every token's size
constexpr std::size_t kListedFiles = 10;
constexpr std::size_t kFirstLineBytes = 100;

template <class T>
std::uint32_t largest_of(std::span<const std::byte> bytes) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    T token;
    std::memcpy(&token, bytes.data() + i, sizeof(T));
    largest = std::max(largest, static_cast<std::uint32_t>(token));
  }
  return largest;
}

struct Description {
  std::string path;
  std::int64_t bytes = 0;
  TokenLayout layout;
  std::uint32_t largest = 0;
  std::string first_line;
};

// Printable: control characters and bytes beyond ASCII that a terminal may not like are shown as \x..
std::string printable(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    const auto c = static_cast<unsigned char>(byte);
    if (c == '\n' || text.size() >= kFirstLineBytes) break;
    text += (c >= 0x20 && c < 0x7f) ? std::string(1, static_cast<char>(c))
            : c == '\r'             ? ""
                                    : fmt::format("\\x{:02x}", c);
  }
  return text;
}

Description describe_file(const std::string& path, DataFormat format, std::vector<std::byte>& chunk) {
  const base::UniqueFd fd = base::open_read(path);
  if (!fd) throw base::data_error(path + ": cannot be opened: " + base::errno_text(errno));
  Description d{
      .path = path, .bytes = base::file_bytes(fd.get()), .layout = {}, .largest = 0, .first_line = {}};
  const auto read = [&](std::int64_t offset) {
    const std::int64_t got = base::read_at(fd.get(), chunk, offset);
    if (got < 0) throw base::data_error(path + ": cannot be read: " + base::errno_text(errno));
    return std::span<const std::byte>(chunk.data(), static_cast<std::size_t>(got));
  };
  const std::span<const std::byte> start = read(0);
  const std::span<const std::byte> head = start.first(std::min<std::size_t>(start.size(), kLayoutHeadBytes));
  d.layout = detect_layout(head, d.bytes, has_token_magic(head) ? DataFormat::tokens : format, 0, path);
  if (d.layout.token_bytes == 1) d.first_line = printable(start);
  for (std::int64_t at = d.layout.data_offset; at < d.bytes;) {
    const std::span<const std::byte> part = read(at);
    if (part.empty()) throw base::data_error(path + ": became shorter while it was read");
    d.largest = std::max(d.largest, d.layout.token_bytes == 1   ? largest_of<std::uint8_t>(part)
                                    : d.layout.token_bytes == 2 ? largest_of<std::uint16_t>(part)
                                                                : largest_of<std::uint32_t>(part));
    at += static_cast<std::int64_t>(part.size());
  }
  return d;
}

}  // namespace

std::string describe_data(const std::string& path, const DataOptions& options) {
  if (options.format == DataFormat::synthetic)
    throw base::data_error("synthetic data has no files to look at");
  std::vector<std::byte> chunk(kChunkBytes);
  std::vector<Description> files;
  std::int64_t tokens = 0, bytes = 0;
  std::uint32_t largest = 0;
  for (const DataFile& listed : list_files({path})) {
    files.push_back(describe_file(listed.path, options.format, chunk));
    tokens += files.back().layout.tokens;
    bytes += files.back().bytes;
    largest = std::max(largest, files.back().largest);
  }
  const auto differs = [&files](const Description& d) {
    return std::strcmp(d.layout.format, files[0].layout.format) != 0;
  };
  const bool mixed = std::any_of(files.begin(), files.end(), differs);
  std::string out = path + "\n";
  const auto line = [&out](const char* name, const std::string& value) {
    out += fmt::format("  {:<15}{}\n", name, value);
  };
  if (files.size() > 1) line("files", with_commas(static_cast<std::int64_t>(files.size())));
  line("format", mixed ? "mixed (see below)" : files[0].layout.format);
  line("tokens", with_commas(tokens));
  if (!mixed) line("bytes a token", std::to_string(files[0].layout.token_bytes));
  line("size", fmt::format("{} ({} bytes)", short_bytes(bytes), with_commas(bytes)));
  line("largest id", tokens == 0
                         ? "none: it is empty"
                         : fmt::format("{} (vocab of at least {})", largest, std::uint64_t{largest} + 1));
  if (files.size() == 1) {
    if (!files[0].first_line.empty()) line("first line", files[0].first_line);
    return out;
  }
  for (std::size_t i = 0; i < std::min(files.size(), kListedFiles); ++i) {
    const Description& d = files[i];
    out += fmt::format("    {:>12} tokens  {}{}\n", with_commas(d.layout.tokens), d.path,
                       mixed ? fmt::format(" ({})", d.layout.format) : "");
    if (!d.first_line.empty()) out += fmt::format("    {:>12}         {}\n", "", d.first_line);
  }
  if (files.size() > kListedFiles) out += fmt::format("    ... and {} more\n", files.size() - kListedFiles);
  return out;
}

}  // namespace trainerd::io
