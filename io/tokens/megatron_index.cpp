#include "io/tokens/megatron_index.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr std::array<char, 9> kIndexMagic{'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr std::string_view kOldMagic = "TNTIDX";
constexpr std::int64_t kIndexHeaderBytes = 34;
constexpr std::uint64_t kMaxSequences = std::uint64_t{1} << 48;

struct TypeCode {
  const char* name;
  TokenType type;  ///< automatic: not supported
};
constexpr std::array<TypeCode, 9> kTypes{{{"", TokenType::automatic},
                                          {"uint8", TokenType::uint8},
                                          {"int8", TokenType::int8},
                                          {"int16", TokenType::int16},
                                          {"int32", TokenType::int32},
                                          {"int64", TokenType::int64},
                                          {"float64", TokenType::automatic},
                                          {"float32", TokenType::automatic},
                                          {"uint16", TokenType::uint16}}};

class Index {
 public:
  Index(const std::string& path, const DataFiles& from) : path_(path), file_(from.open(path)) {}
  bool absent() const { return !file_; }
  std::int64_t bytes() const { return file_.bytes(); }
  void read_all(std::int64_t offset, std::span<std::byte> bytes) const {
    const std::int64_t got = file_.read(offset, bytes);
    if (std::cmp_less(got, bytes.size()))
      throw base::data_error(path_ + ": this Megatron index was cut short; make it again");
  }
  /// Returns false at the end of the file.
  template <class T>
  bool read(std::int64_t offset, T& value) const {
    const std::int64_t got = file_.read(offset, std::as_writable_bytes(std::span(&value, 1)));
    return got == static_cast<std::int64_t>(sizeof(T));
  }
  template <class T>
  T number(std::int64_t offset) const {
    T value{};
    if (!read(offset, value))
      throw base::data_error(path_ + ": this Megatron index was cut short; make it again");
    return value;
  }

 private:
  std::string path_;
  DataFile file_;
};

/// One array of an index, read block by block.
template <class T>
class Column {
 public:
  Column(const Index& file, std::int64_t offset, std::int64_t count)
      : file_(file), offset_(offset), left_(count) {}
  T next() {
    if (at_ == block_.size()) {
      block_.resize(static_cast<std::size_t>(std::min<std::int64_t>(left_, 1 << 14)));
      file_.read_all(offset_, std::as_writable_bytes(std::span(block_)));
      offset_ += static_cast<std::int64_t>(block_.size() * sizeof(T));
      left_ -= static_cast<std::int64_t>(block_.size());
      at_ = 0;
    }
    return block_[at_++];
  }

 private:
  const Index& file_;
  std::int64_t offset_, left_;
  std::vector<T> block_;
  std::size_t at_ = 0;
};

}  // namespace

std::string megatron_data_path(const std::string& path, const DataFiles& from) {
  constexpr std::string_view kIndexEnding = ".idx";
  if (path.ends_with(kIndexEnding)) {
    std::string data = path.substr(0, path.size() - kIndexEnding.size()) + ".bin";
    return from.exists(path) ? data : path;
  }
  // A key that ends with a slash or contains pattern characters stands for several files.
  if (is_s3(path) && (path.ends_with('/') || path.find_first_of("*?[") != std::string::npos)) return path;
  return !from.exists(path) && from.exists(path + ".idx") ? path + ".bin" : path;
}

std::string megatron_index_path(const std::string& data_path) {
  constexpr std::string_view kEnding = ".bin";
  if (!data_path.ends_with(kEnding)) return "";
  return data_path.substr(0, data_path.size() - kEnding.size()) + ".idx";
}

std::optional<MegatronIndex> read_megatron_index(const std::string& path, const DataFiles& from) {
  const Index index(path, from);
  std::array<char, kIndexMagic.size()> magic{};
  if (index.absent() || !index.read(0, magic)) return std::nullopt;
  if (std::string_view(magic.data(), magic.size()).starts_with(kOldMagic))
    throw base::data_error(path +
                           ": this is a TNTIDX index, fairseq's and early Megatron's; this program reads "
                           "MMIDIDX version 1: make the data again with Megatron's preprocess_data.py");
  if (magic != kIndexMagic) return std::nullopt;
  if (const auto version = index.number<std::uint64_t>(9); version != 1)
    throw base::data_error(path + ": Megatron index version " + std::to_string(version) +
                           "; this program reads version 1");
  const auto code = index.number<std::uint8_t>(17);
  const TypeCode type = code < kTypes.size() ? kTypes[code] : TypeCode{"", TokenType::automatic};
  if (type.type == TokenType::automatic)
    throw base::data_error(
        path + ": its tokens are " +
        (type.name[0] == '\0' ? "of type code " + std::to_string(code) : std::string(type.name)) +
        "; this program reads Megatron data of integers: make it again with uint16 or int32");
  const auto sequences = index.number<std::uint64_t>(18);
  if (sequences > kMaxSequences)
    throw base::data_error(path + ": it says " + std::to_string(sequences) + " sequences; make it again");
  const auto starts = index.number<std::uint64_t>(26);
  if (starts < 1 || starts > kMaxSequences)
    throw base::data_error(path + ": it has " + std::to_string(starts) +
                           " document indices, and one more than documents are needed; make it again");
  MegatronIndex found{.path = path,
                      .type = type.type,
                      .data_bytes = 0,
                      .sequences = static_cast<std::int64_t>(sequences),
                      .documents = static_cast<std::int64_t>(starts) - 1,
                      .from = from};
  const std::int64_t bytes = kIndexHeaderBytes + 12 * found.sequences + 8 * (found.documents + 1);
  if (found.sequences > 0 && index.bytes() == bytes + found.sequences)
    throw base::data_error(
        path +
        ": it has a mode for each sequence, as multimodal data sets do; this program trains "
        "on text alone: make the data again without modes (preprocess_data.py)");
  if (index.bytes() != bytes)
    throw base::data_error(path + ": its header says " + std::to_string(found.sequences) + " sequences and " +
                           std::to_string(found.documents) + " documents, which take " +
                           std::to_string(bytes) + " bytes, but the file has " +
                           std::to_string(index.bytes()) + ": it was " +
                           (index.bytes() < bytes ? "cut short" : "appended to") + "; make it again");
  if (sequences == 0) return found;
  const std::int64_t last = found.sequences - 1;
  const auto length = index.number<std::int32_t>(kIndexHeaderBytes + 4 * last);
  const auto offset = index.number<std::int64_t>(kIndexHeaderBytes + 4 * (last + 1) + 8 * last);
  if (length < 0 || offset < 0 ||
      __builtin_add_overflow(offset, length * width_of(type.type), &found.data_bytes))
    throw base::data_error(path + ": its last sequence has " + std::to_string(length) + " tokens at byte " +
                           std::to_string(offset) + "; make it again");
  return found;
}

void each_document(const MegatronIndex& index, const std::function<void(const Document&)>& visit) {
  const Index file(index.path, index.from);
  const std::int64_t width = width_of(index.type), count = index.sequences;
  Column<std::int32_t> lengths(file, kIndexHeaderBytes, count);
  Column<std::int64_t> offsets(file, kIndexHeaderBytes + 4 * count, count);
  Column<std::int64_t> starts(file, kIndexHeaderBytes + 12 * count, index.documents + 1);
  const auto wrong = [&index](const std::string& what) {
    return base::data_error(index.path + ": " + what + "; make it again");
  };
  std::int64_t sequence = 0, first = 0, tokens = 0;
  if (const std::int64_t start = starts.next(); start != 0)
    throw wrong("its first document begins at sequence " + std::to_string(start) + ", not 0");
  for (std::int64_t document = 0; document < index.documents; ++document) {
    const std::int64_t end = starts.next();
    if (end < sequence || end > count)
      throw wrong("document " + std::to_string(document) + " reaches from sequence " +
                  std::to_string(sequence) + " to " + std::to_string(end) + " of " + std::to_string(count));
    for (; sequence < end; ++sequence) {
      const std::int32_t length = lengths.next();
      const std::int64_t offset = offsets.next();
      if (length < 0 || offset != tokens * width)
        throw wrong("sequence " + std::to_string(sequence) + " has " + std::to_string(length) +
                    " tokens at byte " + std::to_string(offset) + ", and the one before it ends at " +
                    std::to_string(tokens * width));
      tokens += length;
    }
    visit({first, tokens - first});
    first = tokens;
  }
  if (sequence != count)
    throw wrong("its documents end at sequence " + std::to_string(sequence) + " of " + std::to_string(count));
}

}  // namespace trainerd::io
