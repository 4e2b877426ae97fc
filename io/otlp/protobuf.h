#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainerd::io {

/// Writes a message in Protocol Buffers' binary encoding (protobuf.dev/programming-guides/encoding), field by
/// field. `field` is the field's number in the schema.
class ProtobufWriter {
 public:
  void add_varint(unsigned field, std::uint64_t value) {
    tag(field, 0);
    varint(value);
  }
  void add_fixed64(unsigned field, std::uint64_t value) {
    tag(field, 1);
    fixed64(value);
  }
  void add_double(unsigned field, double value) { add_fixed64(field, std::bit_cast<std::uint64_t>(value)); }
  void add_float(unsigned field, float value) {
    tag(field, 5);
    fixed(std::bit_cast<std::uint32_t>(value), 4);
  }
  /// Adds text, or an embedded message.
  void add_bytes(unsigned field, std::string_view bytes) {
    tag(field, 2);
    varint(bytes.size());
    text_ += bytes;
  }
  void add_message(unsigned field, const ProtobufWriter& message) { add_bytes(field, message.text_); }
  /// Appends an element of a packed field of 64-bit numbers. A writer that holds only such elements gives the
  /// field's bytes.
  void fixed64(std::uint64_t value) { fixed(value, 8); }
  const std::string& text() const { return text_; }

 private:
  void tag(unsigned field, unsigned wire_type) { varint(field << 3U | wire_type); }
  void fixed(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text_ += static_cast<char>((value >> (8 * i)) & 0xff);
  }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  std::string text_;
};

/// Reads such a message field by field.
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view bytes) : rest_(bytes) {}
  struct Field {
    std::uint64_t number = 0;
    std::uint64_t value = 0;      ///< for numbers
    std::string_view bytes = {};  ///< for text, messages and fixed-size numbers
  };
  /// Returns none at the end and for invalid bytes.
  std::optional<Field> next() {
    const auto key = varint();
    if (!key) return std::nullopt;
    Field field{.number = *key >> 3};
    switch (*key & 7) {
      case 0: {
        const auto value = varint();
        if (!value) return std::nullopt;
        field.value = *value;
        return field;
      }
      case 1: field.bytes = take(8); return field.bytes.size() == 8 ? std::optional(field) : std::nullopt;
      case 2: {
        const auto size = varint();
        if (!size || *size > rest_.size()) return std::nullopt;
        field.bytes = take(*size);
        return field;
      }
      case 5: field.bytes = take(4); return field.bytes.size() == 4 ? std::optional(field) : std::nullopt;
      default: return std::nullopt;
    }
  }

 private:
  std::optional<std::uint64_t> varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }
  std::string_view take(std::size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest_;
};

}  // namespace trainerd::io
