#include "io/tokenizer/sentencepiece_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <unordered_set>

#include "io/text/utf8.h"

namespace trainerd::io {
namespace {

[[noreturn]] void refuse_model(const std::string& what) {
  throw SentencePieceError(
      "its SentencePiece model " + what +
      "; this program reads BPE and unigram models as the library's trainer writes them");
}

// Thrown when the bytes are not a protobuf message of this kind.
struct NoMessage {};

struct Field {
  std::uint32_t number = 0;
  enum class Wire : std::uint8_t { varint, fixed64, bytes, fixed32 = 5 } wire = Wire::varint;
  std::uint64_t value = 0;  // for varint, fixed64, fixed32
  std::string_view bytes;

  std::string_view text() const {
    if (wire != Wire::bytes) throw NoMessage{};
    return bytes;
  }
  std::uint64_t integer() const {
    if (wire != Wire::varint) throw NoMessage{};
    return value;
  }
  bool flag() const { return integer() != 0; }
  float number32() const {
    if (wire != Wire::fixed32) throw NoMessage{};
    return std::bit_cast<float>(static_cast<std::uint32_t>(value));
  }
};

// Reads the fields of one message in order (protobuf.dev/programming-guides/encoding).
class Message {
 public:
  explicit Message(std::string_view rest) : rest_(rest) {}

  bool next(Field& field) {
    if (rest_.empty()) return false;
    const std::uint64_t tag = varint();
    if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff) throw NoMessage{};
    field = {.number = static_cast<std::uint32_t>(tag >> 3), .wire = Field::Wire(tag & 7), .bytes = {}};
    switch (field.wire) {
      case Field::Wire::varint: field.value = varint(); break;
      case Field::Wire::fixed64: field.value = fixed(8); break;
      case Field::Wire::fixed32: field.value = fixed(4); break;
      case Field::Wire::bytes: field.bytes = take(varint()); break;
      default: throw NoMessage{};
    }
    return true;
  }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) throw NoMessage{};
    const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(size));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    throw NoMessage{};
  }
  std::uint64_t fixed(std::size_t size) {
    std::uint64_t value = 0;
    const std::string_view bytes = take(size);
    for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
  }
  std::string_view rest_;
};

[[noreturn]] void refuse_field(const char* message, const Field& field) {
  refuse_model("has the field " + std::to_string(field.number) + " in its " + message +
               ", which is not known");
}

SentencePieceModel::Piece read_piece(std::string_view bytes) {
  SentencePieceModel::Piece piece;
  Message message(bytes);
  for (Field field; message.next(field);) {
    switch (field.number) {
      case 1: piece.text = field.text(); break;
      case 2: piece.score = field.number32(); break;
      case 3:
        if (field.integer() < 1 || field.integer() > 6)
          refuse_model("has a piece of type " + std::to_string(field.integer()));
        piece.type = SentencePieceModel::Type(field.integer());
        break;
      default: refuse_field("pieces", field);
    }
  }
  return piece;
}

void read_trainer_spec(std::string_view bytes, SentencePieceModel& model) {
  // Other fields up to this number only describe the training.
  constexpr std::uint32_t kLastKnown = 54;
  Message message(bytes);
  for (Field field; message.next(field);) {
    switch (field.number) {
      case 3:
        if (field.integer() == 3) refuse_model("is of type WORD");
        if (field.integer() == 4) refuse_model("is of type CHAR");
        if (field.integer() != 1 && field.integer() != 2)
          refuse_model("is of type " + std::to_string(field.integer()));
        model.algorithm = SentencePieceModel::Algorithm(field.integer());
        break;
      case 24:
        if (field.flag()) refuse_model("has treat_whitespace_as_suffix");
        break;
      case 35: model.byte_fallback = field.flag(); break;
      case 44: model.unknown_surface = field.text(); break;
      case 46:
        if (!field.text().empty()) model.bos_piece = field.text();
        break;
      case 47:
        if (!field.text().empty()) model.eos_piece = field.text();
        break;
      default:
        if (field.number > kLastKnown) refuse_field("trainer_spec", field);
    }
  }
}

void read_normalizer_spec(std::string_view bytes, SentencePieceModel& model) {
  Message message(bytes);
  for (Field field; message.next(field);) {
    switch (field.number) {
      case 1:  // name
      case 6:  // normalization_rule_tsv: source of the charsmap
        break;
      case 2: model.charsmap = field.text(); break;
      case 3: model.dummy_prefix = field.flag(); break;
      case 4: model.remove_extra_whitespaces = field.flag(); break;
      case 5:
        if (!field.flag()) refuse_model("has escape_whitespaces off");
        break;
      default: refuse_field("normalizer_spec", field);
    }
  }
}

// The trainer always writes a denormalizer. One without rules changes nothing and is accepted.
void check_denormalizer(std::string_view bytes) {
  Message message(bytes);
  for (Field field; message.next(field);)
    if (field.number == 2 && !field.text().empty()) refuse_model("has a denormalizer_spec with rules");
}

void check_pieces(SentencePieceModel& model) {
  constexpr std::size_t kLongestPiece = 4096;
  if (model.pieces.empty()) refuse_model("has no pieces");
  std::unordered_set<std::string_view> texts;
  std::array<bool, 256> bytes{};
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    const std::string name = "piece " + std::to_string(id);
    if (piece.text.empty() || invalid_utf8(piece.text) != std::string::npos)
      refuse_model("has no UTF-8 text for " + name);
    if (piece.text.size() > kLongestPiece)
      refuse_model("has " + name + " of more than " + std::to_string(kLongestPiece) + " bytes");
    if (!std::isfinite(piece.score)) refuse_model("has no finite score for " + name);
    if (!texts.insert(piece.text).second) refuse_model("has the text of " + name + " twice: " + piece.text);
    if (piece.type == SentencePieceModel::Type::unknown) {
      if (model.unknown_id >= 0) refuse_model("has two unknown pieces");
      model.unknown_id = static_cast<std::int32_t>(id);
    }
    if (piece.type == SentencePieceModel::Type::unused &&
        model.algorithm == SentencePieceModel::Algorithm::bpe)
      refuse_model("is of BPE and has an unused piece: " + piece.text);
    if (piece.type != SentencePieceModel::Type::byte) continue;
    const auto byte = byte_of_piece(piece.text);
    if (!byte || !model.byte_fallback) refuse_model("has a byte piece that it cannot use: " + piece.text);
    bytes[*byte] = true;
  }
  if (model.unknown_id < 0) refuse_model("has no unknown piece");
  if (model.byte_fallback && std::find(bytes.begin(), bytes.end(), false) != bytes.end())
    refuse_model("falls back to bytes and lacks some of the 256 byte pieces");
}

}  // namespace

std::optional<unsigned char> byte_of_piece(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : text.substr(3, 2)) {
    if (c >= '0' && c <= '9') value = value * 16 + static_cast<unsigned>(c - '0');
    else if (c >= 'A' && c <= 'F') value = value * 16 + static_cast<unsigned>(c - 'A') + 10;
    else return std::nullopt;
  }
  return static_cast<unsigned char>(value);
}

std::optional<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes) {
  constexpr std::size_t kMaxPieces = 1 << 24;
  SentencePieceModel model;
  try {
    Message message(bytes);
    for (Field field; message.next(field);) {
      switch (field.number) {
        case 1:
          if (model.pieces.size() == kMaxPieces) throw NoMessage{};
          model.pieces.push_back(read_piece(field.text()));
          break;
        case 2: read_trainer_spec(field.text(), model); break;
        case 3: read_normalizer_spec(field.text(), model); break;
        case 4: field.text(); break;  // self_test_data
        case 5: check_denormalizer(field.text()); break;
        default:
          if (model.pieces.empty()) throw NoMessage{};
          refuse_field("file", field);
      }
    }
  } catch (const NoMessage&) {
    return std::nullopt;
  }
  if (bytes.empty()) return std::nullopt;
  check_pieces(model);
  return model;
}

}  // namespace trainerd::io
