#include "io/tokens/megatron_index.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

constexpr std::array<char, 9> kIndexMagic{'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr std::int64_t kIndexHeaderBytes = 34;
constexpr std::uint64_t kMaxSequences = std::uint64_t{1} << 48;

struct TypeCode {
  const char* name;
  TokenType type;  ///< automatic: not read
};
constexpr std::array<TypeCode, 9> kTypes{{{"", TokenType::automatic},
                                          {"uint8", TokenType::uint8},
                                          {"int8", TokenType::automatic},
                                          {"int16", TokenType::automatic},
                                          {"int32", TokenType::int32},
                                          {"int64", TokenType::automatic},
                                          {"float64", TokenType::automatic},
                                          {"float32", TokenType::automatic},
                                          {"uint16", TokenType::uint16}}};

class Index {
 public:
  explicit Index(const std::string& path) : path_(path), fd_(base::open_read(path)) {
    if (!fd_ && errno != ENOENT)
      throw base::data_error(path + ": cannot be opened: " + base::errno_text(errno));
  }
  bool absent() const { return !fd_; }
  /// False at the end of the file.
  template <class T>
  bool read(std::int64_t offset, T& value) const {
    const std::int64_t got = base::read_at(fd_.get(), std::as_writable_bytes(std::span(&value, 1)), offset);
    if (got < 0) throw base::data_error(path_ + ": cannot be read: " + base::errno_text(errno));
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
  base::UniqueFd fd_;
};

}  // namespace

std::string megatron_index_path(const std::string& data_path) {
  constexpr std::string_view kEnding = ".bin";
  if (!data_path.ends_with(kEnding)) return "";
  return data_path.substr(0, data_path.size() - kEnding.size()) + ".idx";
}

std::optional<MegatronIndex> read_megatron_index(const std::string& path) {
  const Index index(path);
  std::array<char, kIndexMagic.size()> magic{};
  if (index.absent() || !index.read(0, magic) || magic != kIndexMagic) return std::nullopt;
  if (const auto version = index.number<std::uint64_t>(9); version != 1)
    throw base::data_error(path + ": Megatron index version " + std::to_string(version) +
                           "; this program reads version 1");
  const auto code = index.number<std::uint8_t>(17);
  const TypeCode type = code < kTypes.size() ? kTypes[code] : TypeCode{"", TokenType::automatic};
  if (type.type == TokenType::automatic)
    throw base::data_error(
        path + ": its tokens are " +
        (type.name[0] == '\0' ? "of type code " + std::to_string(code) : std::string(type.name)) +
        "; this program reads Megatron data of uint8, uint16 and int32: make it again with one of them");
  const auto sequences = index.number<std::uint64_t>(18);
  if (sequences > kMaxSequences)
    throw base::data_error(path + ": it says " + std::to_string(sequences) + " sequences; make it again");
  MegatronIndex found{path, type.type, 0};
  if (sequences == 0) return found;
  const auto last = static_cast<std::int64_t>(sequences) - 1;
  const auto length = index.number<std::int32_t>(kIndexHeaderBytes + 4 * last);
  const auto offset = index.number<std::int64_t>(kIndexHeaderBytes + 4 * (last + 1) + 8 * last);
  if (length < 0 || offset < 0 ||
      __builtin_add_overflow(offset, length * width_of(type.type), &found.data_bytes))
    throw base::data_error(path + ": its last sequence has " + std::to_string(length) + " tokens at byte " +
                           std::to_string(offset) + "; make it again");
  return found;
}

}  // namespace trainerd::io
