#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace trainerd::io {

/// A SentencePiece model that is unsupported or inconsistent.
class SentencePieceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Contents of a SentencePiece model file (sentencepiece_model.proto), without settings that only matter for
/// its training.
struct SentencePieceModel {
  enum class Type : std::uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string text;
    float score = 0;  ///< log probability; for BPE the negated merge order
    Type type = Type::normal;
  };
  enum class Algorithm : std::uint8_t { unigram = 1, bpe };

  std::vector<Piece> pieces;  ///< by id
  Algorithm algorithm = Algorithm::unigram;
  bool byte_fallback = false;
  std::string bos_piece = "<s>", eos_piece = "</s>";
  std::string unknown_surface = " \xe2\x81\x87 ";  ///< text that the unknown id decodes to
  std::string charsmap;                            ///< precompiled_charsmap
  bool dummy_prefix = true, remove_extra_whitespaces = true;

  std::int32_t unknown_id = -1;
};

/// Returns none if `bytes` are not such a message. Throws SentencePieceError for an unsupported type, setting
/// or field, or an inconsistent model.
std::optional<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes);

/// Returns the byte of a byte piece, <0x00> to <0xFF>; none for another text.
std::optional<unsigned char> byte_of_piece(std::string_view text);

}  // namespace trainerd::io
