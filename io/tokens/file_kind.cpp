#include "io/tokens/file_kind.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace trainerd::io {
namespace {

using namespace std::string_view_literals;

constexpr const char* kUnpack =
    "unpack it first; data is read by position, which a compressed file does not allow";
constexpr const char* kConvert =
    "write its texts to a plain text file, or its token ids to a file of uint16 or uint32 (array.tofile)";

struct Magic {
  std::string_view bytes;
  std::size_t offset;
  const char* what;
  const char* remedy;
};

// Each is long enough, or has enough non-printable bytes, that text does not start with it.
constexpr std::array kMagics{
    Magic{"\x28\xb5\x2f\xfd"sv, 0, "a zstd-compressed file", kUnpack},
    Magic{"\xfd"
          "7zXZ\0"sv,
          0, "an xz-compressed file", kUnpack},
    Magic{"\x04\x22\x4d\x18"sv, 0, "an lz4-compressed file", kUnpack},
    Magic{"1AY&SY"sv, 4, "a bzip2-compressed file", kUnpack},
    Magic{"PK\x03\x04"sv, 0, "a zip archive (or a file in one, such as .npz or .pt)", "unpack it first"},
    Magic{"PK\x05\x06"sv, 0, "an empty zip archive", "unpack it first"},
    Magic{"ustar\0"sv, 257, "a tar archive", "unpack it first"},
    Magic{"ustar  \0"sv, 257, "a tar archive", "unpack it first"},
    Magic{"MMIDIDX\0\0"sv, 0, "the index of a Megatron data set, not its tokens",
          "name the .bin beside it, which is then read by this index; if there is none, copy it too"},
    Magic{"TNTIDX\0\0"sv, 0, "an index of the older format TNTIDX, not tokens",
          "make the data again with Megatron's preprocess_data.py, which writes MMIDIDX"},
    Magic{"PAR1\x15"sv, 0, "a Parquet file", kConvert},
    Magic{"ARROW1\0\0"sv, 0, "an Arrow file", kConvert},
    Magic{"\x93NUMPY"sv, 0, "a NumPy array with its header",
          "write the array without the header (array.tofile) and set data.dtype to its type"},
    Magic{"\x7f"
          "ELF"sv,
          0, "an ELF program or library", "take it off data.train; it is no training data"},
    Magic{"\x89HDF\r\n\x1a\n"sv, 0, "an HDF5 file", kConvert},
    Magic{"SQLite format 3\0"sv, 0, "an SQLite database", kConvert},
    Magic{"%PDF-"sv, 0, "a PDF document", "extract its text first (pdftotext)"},
};

bool starts_with(std::span<const std::byte> head, std::size_t offset, std::string_view bytes) {
  return offset + bytes.size() <= head.size() &&
         std::memcmp(head.data() + offset, bytes.data(), bytes.size()) == 0;
}

unsigned byte_at(std::span<const std::byte> head, std::size_t i) {
  return std::to_integer<unsigned>(head[i]);
}

template <class T>
T number_at(std::span<const std::byte> head, std::size_t offset) {
  T value{};
  if (offset + sizeof(T) <= head.size()) std::memcpy(&value, head.data() + offset, sizeof(T));
  return value;
}

// Two magic bytes may also be a token id, so method, flags and operating system must be valid too (RFC 1952,
// section 2.3).
bool is_gzip(std::span<const std::byte> head) {
  return starts_with(head, 0, "\x1f\x8b\x08"sv) && head.size() >= 10 && (byte_at(head, 3) & 0xe0u) == 0 &&
         (byte_at(head, 9) <= 13 || byte_at(head, 9) == 255);
}

// safetensors has no magic number: checks the length of its JSON header and the first bytes of it.
bool is_safetensors(std::span<const std::byte> head, std::int64_t file_bytes) {
  const auto length = number_at<std::uint64_t>(head, 0);
  return starts_with(head, 8, "{\""sv) && length >= 2 && length <= static_cast<std::uint64_t>(file_bytes) - 8;
}

// Arrow's stream format (used by Hugging Face data sets) has a marker, then the length of a schema message.
bool is_arrow_stream(std::span<const std::byte> head) {
  const auto length = number_at<std::int32_t>(head, 4);
  return starts_with(head, 0, "\xff\xff\xff\xff"sv) && length > 0 && length < (1 << 24) && length % 8 == 0;
}

// Shorter data may be numbers that look like text by chance.
constexpr std::size_t kMinText = 64;

// Returns the length of the UTF-8 sequence at the start; 0 if invalid. A sequence that is cut off by the end
// of `bytes` is valid.
std::size_t utf8_length(std::span<const std::byte> bytes) {
  const unsigned first = byte_at(bytes, 0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 && first < 0xf5   ? 4
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xc2 && first < 0xe0 ? 2
                                                             : 0;
  for (std::size_t i = 1; i < std::min(length, bytes.size()); ++i)
    if ((byte_at(bytes, i) & 0xc0u) != 0x80) return 0;
  return length;
}

}  // namespace

std::optional<ForeignKind> foreign_kind(std::span<const std::byte> head, std::int64_t file_bytes) {
  if (is_gzip(head)) return ForeignKind{"a gzip-compressed file", kUnpack};
  for (const Magic& magic : kMagics)
    if (starts_with(head, magic.offset, magic.bytes)) return ForeignKind{magic.what, magic.remedy};
  if (is_safetensors(head, file_bytes))
    return ForeignKind{"a safetensors file", "take it off data.train; it holds weights, no training data"};
  if (is_arrow_stream(head))
    return ForeignKind{"an Arrow stream, as Hugging Face data sets are kept in", kConvert};
  return std::nullopt;
}

bool looks_like_text(std::span<const std::byte> head, bool whole) {
  if (head.size() < kMinText) return false;
  for (std::size_t i = 0; i < head.size();) {
    const unsigned byte = byte_at(head, i);
    if (byte == 0x7f || (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r' && byte != '\f'))
      return false;
    const std::size_t length = utf8_length(head.subspan(i));
    if (length == 0 || (whole && i + length > head.size())) return false;
    i += length;
  }
  return true;
}

bool is_json_lines(const std::string& path) { return path.ends_with(".jsonl") || path.ends_with(".ndjson"); }

}  // namespace trainerd::io
