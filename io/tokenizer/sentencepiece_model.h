#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace trainerd::io {

/// A SentencePiece model with a part that is not supported, or that contradicts itself.
class SentencePieceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What the file of a SentencePiece model says (sentencepiece_model.proto), without the settings that only
/// its trainer reads.
struct SentencePieceModel {
  enum class Type : std::uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string text;
    float score = 0;  ///< log probability; of BPE the order of merges, negated
    Type type = Type::normal;
  };
  enum class Algorithm : std::uint8_t { unigram = 1, bpe };

  std::vector<Piece> pieces;  ///< by id
  Algorithm algorithm = Algorithm::unigram;
  bool byte_fallback = false;
  std::string bos_piece = "<s>", eos_piece = "</s>";
  std::string unknown_surface = " \xe2\x81\x87 ";  ///< what the unknown id decodes to
  std::string charsmap;                            ///< precompiled_charsmap
  bool dummy_prefix = true, remove_extra_whitespaces = true;

  std::int32_t unknown_id = -1;
};

/// None where `bytes` are no such message. Throws SentencePieceError: the model has a type, a setting or a
/// field that is not supported, or contradicts itself.
std::optional<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes);

/// The byte of a byte piece's text, <0x00> to <0xFF>.
std::optional<unsigned char> byte_of_piece(std::string_view text);

}  // namespace trainerd::io
