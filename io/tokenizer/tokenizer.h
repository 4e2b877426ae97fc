#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/encode_error.h"

namespace trainerd::io {

/// What the text of a special token becomes inside a document ("<|endoftext|>" in a page about tokenizers).
enum class SpecialText : std::uint8_t {
  token,  ///< the token, the default of Hugging Face's tokenizers
  plain   ///< tokens of its characters, like other text
};

/// Encodes texts. May cache results between calls. For one thread.
class Encoder {
 public:
  virtual ~Encoder() = default;
  /// Appends the ids of `text` (valid UTF-8), without TokenizerInfo::before and `after`. Throws EncodeError.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) = 0;
  /// The same, and appends to `ends` for each id the byte of `text` at which its part ends. The token of a
  /// space prefix has an empty part. Throws EncodeError also if the tokenizer changes the text so that these
  /// positions are unknown.
  virtual void encode_placed(std::string_view text, std::vector<std::int32_t>& ids,
                             std::vector<std::size_t>& ends) = 0;
};

struct TokenizerInfo {
  std::string kind;                       ///< "bytes", "byte-level BPE", "SentencePiece unigram", ...
  std::string hash;                       ///< 128-bit XXH3 of its file, in hex; "bytes" for bytes
  std::int64_t vocab = 0;                 ///< every id is smaller
  std::optional<std::int32_t> bos = {};   ///< begins a document; none if the files do not name it
  std::optional<std::int32_t> eos = {};   ///< ends a document; none if the files do not name it
  std::vector<std::int32_t> before = {};  ///< ids that its rule adds before a text (Llama 3: begin of text)
  std::vector<std::int32_t> after = {};   ///< ids that its rule adds after a text
  bool special_text = false;  ///< true if the text of a special token in a document can become the token
};

/// Converts text to token ids and back. Immutable, so several threads may use it.
class Tokenizer {
 public:
  explicit Tokenizer(TokenizerInfo info) : info_(std::move(info)) {}
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  const TokenizerInfo& info() const { return info_; }
  /// The encoder must not outlive the tokenizer.
  virtual std::unique_ptr<Encoder> encoder(SpecialText specials) const = 0;
  /// Returns an encoder for texts written by a chat template: texts of special tokens become tokens, as in
  /// `apply_chat_template` of transformers. It must not outlive the tokenizer.
  virtual std::unique_ptr<Encoder> template_encoder() const { return encoder(SpecialText::token); }
  /// Returns the bytes of `ids`, with the text of special tokens. Valid UTF-8 if the ids form whole
  /// characters. Throws DataError for an id outside the vocabulary.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// Returns the number of bytes of text in normal form per id: 0 for special tokens, -1 if unknown (a token
  /// for all unknown text). [vocab]
  virtual std::vector<std::int32_t> text_bytes() const = 0;
  /// Returns `text` in the tokenizer's Unicode normal form, which is what an encoder splits into tokens.
  virtual std::string normal_form(std::string_view text) const { return std::string(text); }
  /// Returns the id of a token by its text ("<|endoftext|>").
  virtual std::optional<std::int32_t> id_of(std::string_view token) const = 0;
  /// Returns the text by which `id_of` finds a special token.
  virtual std::string special_text_of(std::int32_t id) const { return decode(std::span(&id, 1)); }

 private:
  TokenizerInfo info_;
};

/// Opens "bytes" (one token per byte), a Hugging Face `tokenizer.json` (byte-level BPE, or BPE with byte
/// fallback) or a SentencePiece model. A `tokenizer_config.json` beside a `tokenizer.json` names its special
/// tokens. Throws DataError naming the file if it is missing or broken, or if a part of it (model type,
/// normalizer, pre-tokenizer, regular expression) is unsupported.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& file);

}  // namespace trainerd::io
