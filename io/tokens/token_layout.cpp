#include "io/tokens/token_layout.h"

#include <array>
#include <bit>
#include <cstring>

#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read without swapping bytes");

constexpr std::array<unsigned char, 8> kMagic{0x89, 'T', 'R', 'D', 'T', 'O', 'K', '\n'};
constexpr std::int64_t kHeaderBytes = 64;
constexpr std::uint32_t kVersion = 1;
constexpr std::int64_t kLlmcHeaderBytes = 256 * 4;

struct LlmcKind {
  std::uint32_t magic, version;
  std::int64_t token_bytes;
  const char* format;
};
constexpr std::array<LlmcKind, 2> kLlmcKinds{
    {{20240520, 1, 2, "llm.c GPT-2 (uint16)"}, {20240801, 7, 4, "llm.c Llama-3 (uint32)"}}};

template <class T>
T field(std::span<const std::byte> head, std::size_t offset) {
  T value{};
  if (offset + sizeof(T) <= head.size()) std::memcpy(&value, head.data() + offset, sizeof(T));
  return value;
}

bool has_own_magic(std::span<const std::byte> head) {
  return head.size() >= kMagic.size() && std::memcmp(head.data(), kMagic.data(), kMagic.size()) == 0;
}

const LlmcKind* llmc_kind(std::span<const std::byte> head) {
  if (head.size() < 4) return nullptr;
  for (const LlmcKind& kind : kLlmcKinds)
    if (field<std::uint32_t>(head, 0) == kind.magic) return &kind;
  return nullptr;
}

void check_size(std::uint64_t tokens, std::int64_t file_bytes, const TokenLayout& layout,
                const std::string& path) {
  const std::int64_t data = file_bytes - layout.data_offset;
  if (data >= 0 && data % layout.token_bytes == 0 &&
      static_cast<std::uint64_t>(data / layout.token_bytes) == tokens)
    return;
  const bool cut = data < 0 || static_cast<std::uint64_t>(data / layout.token_bytes) < tokens;
  throw base::data_error(path + ": its header (" + layout.format + ") says " + std::to_string(tokens) +
                         " tokens after " + std::to_string(layout.data_offset) + " bytes, but the file has " +
                         std::to_string(file_bytes) + " bytes: it was " +
                         (cut ? "cut short" : "written over or appended to") + "; make it again");
}

}  // namespace

std::vector<std::byte> token_file_header(std::int64_t token_bytes, std::int64_t tokens) {
  std::vector<std::byte> header(kHeaderBytes);
  const auto version = kVersion;
  const auto width = static_cast<std::uint32_t>(token_bytes);
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  std::memcpy(header.data() + 8, &version, 4);
  std::memcpy(header.data() + 12, &width, 4);
  std::memcpy(header.data() + 16, &tokens, 8);
  return header;
}

bool has_token_magic(std::span<const std::byte> head) {
  return has_own_magic(head) || llmc_kind(head) != nullptr;
}

TokenLayout detect_layout(std::span<const std::byte> head, std::int64_t file_bytes, DataFormat format,
                          std::int64_t vocab, const std::string& path) {
  if (format == DataFormat::text) {
    if (has_token_magic(head))
      throw base::data_error(path + ": this is a token file, not text: set data.format: tokens");
    return {.format = "text", .token_bytes = 1, .data_offset = 0, .tokens = file_bytes};
  }
  if (has_own_magic(head)) {
    const auto version = field<std::uint32_t>(head, 8), width = field<std::uint32_t>(head, 12);
    if (static_cast<std::int64_t>(head.size()) < kHeaderBytes)
      throw base::data_error(path + ": the file ends inside its header; make it again");
    if (version != kVersion)
      throw base::data_error(path + ": token file version " + std::to_string(version) +
                             "; this program reads version " + std::to_string(kVersion));
    if (width != 2 && width != 4)
      throw base::data_error(path + ": its header says " + std::to_string(width) +
                             " bytes a token; only 2 and 4 exist");
    TokenLayout layout{.format = width == 2 ? "trainerd uint16" : "trainerd uint32",
                       .token_bytes = width,
                       .data_offset = kHeaderBytes};
    check_size(field<std::uint64_t>(head, 16), file_bytes, layout, path);
    layout.tokens = (file_bytes - kHeaderBytes) / layout.token_bytes;
    return layout;
  }
  if (const LlmcKind* kind = llmc_kind(head)) {
    if (static_cast<std::int64_t>(head.size()) < kLlmcHeaderBytes)
      throw base::data_error(path + ": the file ends inside its llm.c header; make it again");
    if (const auto version = field<std::uint32_t>(head, 4); version != kind->version)
      throw base::data_error(path + ": " + kind->format + " version " + std::to_string(version) +
                             "; this program reads version " + std::to_string(kind->version));
    TokenLayout layout{
        .format = kind->format, .token_bytes = kind->token_bytes, .data_offset = kLlmcHeaderBytes};
    check_size(field<std::uint32_t>(head, 8), file_bytes, layout, path);
    layout.tokens = (file_bytes - kLlmcHeaderBytes) / layout.token_bytes;
    return layout;
  }
  if (vocab > 65536)
    throw base::data_error(
        path + ": a token file without a header holds 16-bit tokens, which cannot name a vocabulary of " +
        std::to_string(vocab) + "; write it with a header (trainerd's or llm.c's)");
  if (file_bytes % 2 != 0)
    throw base::data_error(
        path + ": a token file without a header holds 16-bit tokens, but its size is odd (" +
        std::to_string(file_bytes) + " bytes): it was cut short, or it is not a token file");
  return {.format = "headerless uint16", .token_bytes = 2, .data_offset = 0, .tokens = file_bytes / 2};
}

}  // namespace trainerd::io
