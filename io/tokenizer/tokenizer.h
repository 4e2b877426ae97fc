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

/// What a special token's text inside a document becomes ("<|endoftext|>" in a page about tokenizers).
enum class SpecialText : std::uint8_t {
  token,  ///< the token, as Hugging Face's tokenizers do by default
  plain   ///< tokens of its characters, as other text
};

/// Encodes texts; keeps what it learned between them. For one thread.
class Encoder {
 public:
  virtual ~Encoder() = default;
  /// Appends the ids of `text`, which is valid UTF-8, without those of TokenizerInfo::before and `after`.
  /// Throws EncodeError.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) = 0;
  /// The same; `ends` gets for each of these ids the byte of `text` at which its part ends. A token of a
  /// space that the tokenizer puts before a text has no part. Throws EncodeError, too where the places are
  /// not known because the tokenizer changes the text.
  virtual void encode_placed(std::string_view text, std::vector<std::int32_t>& ids,
                             std::vector<std::size_t>& ends) = 0;
};

struct TokenizerInfo {
  std::string kind;                       ///< "bytes", "byte-level BPE", "SentencePiece unigram", ...
  std::string hash;                       ///< of its file: 128-bit XXH3 in hex; for bytes "bytes"
  std::int64_t vocab = 0;                 ///< every id is less
  std::optional<std::int32_t> bos = {};   ///< begins a document, where the files name such a token
  std::optional<std::int32_t> eos = {};   ///< ends a document, where the files name such a token
  std::vector<std::int32_t> before = {};  ///< what its own rule puts before a text (Llama 3: begin of text)
  std::vector<std::int32_t> after = {};   ///< and after it
  bool special_text = false;              ///< a special token's text in a document can become the token
};

/// Text to token ids and back. Not changed after construction: several threads may use one.
class Tokenizer {
 public:
  explicit Tokenizer(TokenizerInfo info) : info_(std::move(info)) {}
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  const TokenizerInfo& info() const { return info_; }
  /// It must not outlive the tokenizer.
  virtual std::unique_ptr<Encoder> encoder(SpecialText specials) const = 0;
  /// Of texts that a template of conversations wrote: the texts of special tokens become the tokens, as in
  /// `apply_chat_template` of transformers. It must not outlive the tokenizer.
  virtual std::unique_ptr<Encoder> template_encoder() const { return encoder(SpecialText::token); }
  /// The bytes that `ids` stand for, special tokens by their text. Valid UTF-8 where the ids are those of
  /// whole characters. Throws DataError for an id that is not in the vocabulary.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// Bytes of text that each id stands for, in normal form: 0 for special tokens, which stand for none, and
  /// -1 where that is not known (a token for all that is unknown). [vocab]
  virtual std::vector<std::int32_t> text_bytes() const = 0;
  /// `text` as an encoder sees it before it is cut into tokens: in the tokenizer's Unicode normal form.
  virtual std::string normal_form(std::string_view text) const { return std::string(text); }
  /// The id of a token by its text ("<|endoftext|>").
  virtual std::optional<std::int32_t> id_of(std::string_view token) const = 0;
  /// The text by which `id_of` finds a special token.
  virtual std::string special_text_of(std::int32_t id) const { return decode(std::span(&id, 1)); }

 private:
  TokenizerInfo info_;
};

/// Opens "bytes" (one token a byte), a Hugging Face `tokenizer.json` of byte-level BPE or of BPE that falls
/// back to bytes, or a SentencePiece model. Special tokens of the former are named by a
/// `tokenizer_config.json` beside it. Throws DataError naming the file: it is not there or broken, or a part
/// of it (a model type, a normalizer, a pre-tokenizer, a regular expression) is none that this program
/// implements.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& file);

}  // namespace trainerd::io
