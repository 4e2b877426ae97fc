#include "io/tokens/token_layout.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "io/tokens/file_kind.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read without swapping bytes");

constexpr std::array<unsigned char, 8> kTokenMagic{0x89, 'T', 'R', 'D', 'T', 'O', 'K', '\n'};
constexpr std::int64_t kTokenHeaderBytes = 64;
constexpr std::uint32_t kVersion = 1;
constexpr std::int64_t kLlmcHeaderBytes = 256 * 4;

struct LlmcKind {
  std::uint32_t magic, version;
  TokenType type;
  const char* format;
};
constexpr std::array<LlmcKind, 2> kLlmcKinds{{{20240520, 1, TokenType::uint16, "llm.c GPT-2 (uint16)"},
                                              {20240801, 7, TokenType::uint32, "llm.c Llama-3 (uint32)"}}};

template <class T>
T field(std::span<const std::byte> head, std::size_t offset) {
  T value{};
  if (offset + sizeof(T) <= head.size()) std::memcpy(&value, head.data() + offset, sizeof(T));
  return value;
}

bool has_own_magic(std::span<const std::byte> head) {
  return head.size() >= kTokenMagic.size() &&
         std::memcmp(head.data(), kTokenMagic.data(), kTokenMagic.size()) == 0;
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

void refuse_foreign(std::span<const std::byte> head, std::int64_t file_bytes, const std::string& path) {
  if (const auto kind = foreign_kind(head, file_bytes))
    throw base::data_error(path + ": this is " + kind->what + ": " + kind->remedy);
}

TokenLayout text_layout(std::span<const std::byte> head, std::int64_t file_bytes, const std::string& path) {
  if (has_token_magic(head))
    throw base::data_error(path + ": this is a token file, not text: set data.format: tokens");
  refuse_foreign(head, file_bytes, path);
  if (std::find(head.begin(), head.end(), std::byte{0}) != head.end())
    throw base::data_error(path +
                           ": this is not text, it has NUL bytes: for token files set data.format: tokens; "
                           "to train on the bytes "
                           "of a binary file, data.dtype: uint8 beside it");
  if (is_json_lines(path))
    throw base::data_error(path +
                           ": these are JSON lines, and format: text would train on their braces and keys: "
                           "write their texts to a "
                           "plain file (jq -r .text); to train on the JSON itself, name the file .txt");
  return {.kind = TokenLayout::Kind::text,
          .format = "text",
          .type = TokenType::uint8,
          .token_bytes = 1,
          .data_offset = 0,
          .tokens = file_bytes};
}

TokenLayout own_layout(std::span<const std::byte> head, std::int64_t file_bytes, const std::string& path) {
  const auto version = field<std::uint32_t>(head, 8), width = field<std::uint32_t>(head, 12);
  if (static_cast<std::int64_t>(head.size()) < kTokenHeaderBytes)
    throw base::data_error(path + ": the file ends inside its header; make it again");
  if (version != kVersion)
    throw base::data_error(path + ": token file version " + std::to_string(version) +
                           "; this program reads version " + std::to_string(kVersion));
  if (width != 2 && width != 4)
    throw base::data_error(path + ": its header says " + std::to_string(width) +
                           " bytes a token; only 2 and 4 exist");
  TokenLayout layout{.kind = TokenLayout::Kind::trainerd,
                     .format = width == 2 ? "trainerd uint16" : "trainerd uint32",
                     .type = width == 2 ? TokenType::uint16 : TokenType::uint32,
                     .token_bytes = width,
                     .data_offset = kTokenHeaderBytes};
  check_size(field<std::uint64_t>(head, 16), file_bytes, layout, path);
  layout.tokens = (file_bytes - kTokenHeaderBytes) / layout.token_bytes;
  return layout;
}

TokenLayout llmc_layout(const LlmcKind& kind, std::span<const std::byte> head, std::int64_t file_bytes,
                        const std::string& path) {
  if (static_cast<std::int64_t>(head.size()) < kLlmcHeaderBytes)
    throw base::data_error(path + ": the file ends inside its llm.c header; make it again");
  if (const auto version = field<std::uint32_t>(head, 4); version != kind.version)
    throw base::data_error(path + ": " + kind.format + " version " + std::to_string(version) +
                           "; this program reads version " + std::to_string(kind.version));
  TokenLayout layout{.kind = TokenLayout::Kind::llmc,
                     .format = kind.format,
                     .type = kind.type,
                     .token_bytes = width_of(kind.type),
                     .data_offset = kLlmcHeaderBytes};
  check_size(field<std::uint32_t>(head, 8), file_bytes, layout, path);
  layout.tokens = (file_bytes - kLlmcHeaderBytes) / layout.token_bytes;
  return layout;
}

TokenLayout indexed_layout(const MegatronIndex& index, std::int64_t file_bytes, const std::string& path) {
  if (index.data_bytes != file_bytes)
    throw base::data_error(path + ": its index " + index.path + " says " + std::to_string(index.data_bytes) +
                           " bytes, but the file has " + std::to_string(file_bytes) +
                           ": one of the two was cut short or is another data set's; make them again");
  constexpr std::array<const char*, 8> kFormats{"",
                                                "Megatron uint8",
                                                "Megatron uint16",
                                                "Megatron int32",
                                                "Megatron uint32",
                                                "Megatron int8",
                                                "Megatron int16",
                                                "Megatron int64"};
  const std::int64_t width = width_of(index.type);
  return {.kind = TokenLayout::Kind::megatron,
          .format = kFormats.at(static_cast<std::size_t>(index.type)),
          .type = index.type,
          .token_bytes = width,
          .data_offset = 0,
          .tokens = file_bytes / width,
          .index = index};
}

// Guesses the type from the first numbers. Ids below 65,536 leave the upper half of each 32-bit number 0.
std::string guess_of(std::span<const std::byte> head) {
  const std::size_t pairs = head.size() / 4;
  bool upper_zero = pairs >= 8, lower_zero = true;
  for (std::size_t i = 0; i < pairs; ++i) {
    upper_zero &= field<std::uint16_t>(head, 4 * i + 2) == 0;
    lower_zero &= field<std::uint16_t>(head, 4 * i) == 0;
  }
  bool long_zero = pairs >= 16, short_zero = true;  // pairs of 32-bit numbers
  for (std::size_t i = 0; i + 1 < pairs; i += 2) {
    short_zero &= field<std::uint32_t>(head, 4 * i) == 0;
    long_zero &= field<std::uint32_t>(head, 4 * i + 4) == 0;
  }
  if (long_zero && !short_zero) return " (every second 32-bit number is 0, as in a file of int64)";
  if (upper_zero && !lower_zero) return " (every second 16-bit number is 0, as in a file of int32)";
  return " (nanoGPT writes uint16; Megatron's files need their .idx beside them, or int32 or uint16 stated)";
}

TokenLayout headerless_layout(std::span<const std::byte> head, std::int64_t file_bytes,
                              const LayoutRequest& request, const std::string& path) {
  refuse_foreign(head, file_bytes, path);
  const bool whole = static_cast<std::int64_t>(head.size()) == file_bytes;
  if (request.dtype != TokenType::uint8 && looks_like_text(head, whole))
    throw base::data_error(path + ": this is text" + (is_json_lines(path) ? " (JSON lines)" : "") +
                           ", not a token file: set data.format: text, or tokenize it first");
  if (request.dtype == TokenType::automatic)
    throw base::data_error(
        path +
        ": a token file without a header does not say what its numbers are: set data.dtype (--dtype of data "
        "inspect) to uint16, int32, uint32 or int64" +
        guess_of(head));
  if (request.vocab > 65536 && request.dtype == TokenType::uint16)
    throw base::data_error(
        path + ": a file of 16-bit tokens cannot name a vocabulary of " + std::to_string(request.vocab) +
        ": set data.dtype to what the file holds, or write it with a header (trainerd's or llm.c's)");
  const std::int64_t width = width_of(request.dtype);
  if (file_bytes % width != 0)
    throw base::data_error(path + ": data.dtype is " + name_of(request.dtype) + ", but the file's " +
                           std::to_string(file_bytes) + " bytes are no multiple of " + std::to_string(width) +
                           ": it was cut short, or it holds something else");
  constexpr std::array<const char*, 8> kFormats{"",
                                                "headerless uint8",
                                                "headerless uint16",
                                                "headerless int32",
                                                "headerless uint32",
                                                "headerless int8",
                                                "headerless int16",
                                                "headerless int64"};
  return {.kind = TokenLayout::Kind::headerless,
          .format = kFormats.at(static_cast<std::size_t>(request.dtype)),
          .type = request.dtype,
          .token_bytes = width,
          .data_offset = 0,
          .tokens = file_bytes / width};
}

}  // namespace

bool has_token_magic(std::span<const std::byte> head) {
  return has_own_magic(head) || llmc_kind(head) != nullptr;
}

const char* name_of(TokenType type) {
  constexpr std::array<const char*, 8> kNames{"auto",   "uint8", "uint16", "int32",
                                              "uint32", "int8",  "int16",  "int64"};
  return kNames.at(static_cast<std::size_t>(type));
}

TokenLayout detect_layout(std::span<const std::byte> head, std::int64_t file_bytes,
                          const LayoutRequest& request, const std::string& path) {
  if (request.format == DataFormat::text) return text_layout(head, file_bytes, path);
  TokenLayout layout;
  if (request.index) layout = indexed_layout(*request.index, file_bytes, path);
  else if (has_own_magic(head)) layout = own_layout(head, file_bytes, path);
  else if (const LlmcKind* kind = llmc_kind(head)) layout = llmc_layout(*kind, head, file_bytes, path);
  else return headerless_layout(head, file_bytes, request, path);
  if (request.dtype != TokenType::automatic && width_of(request.dtype) != layout.token_bytes)
    throw base::data_error(path + ": its " + (request.index ? "index" : "header") + " says " +
                           name_of(layout.type) + ", but data.dtype is " + name_of(request.dtype) +
                           ": leave data.dtype out, or name files of one type");
  return layout;
}

}  // namespace trainerd::io
