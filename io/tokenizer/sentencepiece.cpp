#include "io/tokenizer/sentencepiece.h"

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/hash/hash.h"
#include "io/tokenizer/sentencepiece_encoder.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

using Type = SentencePieceModel::Type;

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(TokenizerInfo info, SentencePieceModel model)
      : Tokenizer(std::move(info)), model_(std::move(model)), tables_(model_) {
    for (std::size_t id = 0; id < model_.pieces.size(); ++id)
      ids_.emplace(model_.pieces[id].text, static_cast<std::int32_t>(id));
    // The tables are built from it, and afterwards only the pieces are needed.
    model_.charsmap.clear();
  }

  std::unique_ptr<Encoder> encoder(SpecialText) const override { return sentencepiece_encoder(tables_); }

  std::unique_ptr<Encoder> template_encoder() const override {
    return sentencepiece_template_encoder(tables_);
  }

  // As SentencePieceProcessor::Decode, except that bytes that form no character are kept.
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    bool at_begin = true, space_taken = false;
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= info().vocab)
        throw base::data_error("the tokenizer has no token " + std::to_string(id));
      const SentencePieceModel::Piece& piece = model_.pieces[static_cast<std::size_t>(id)];
      if (piece.type == Type::byte) {
        text += static_cast<char>(*byte_of_piece(piece.text));
        continue;
      }
      if (space_taken || !text.empty()) at_begin = false;
      space_taken = false;
      if (piece.type == Type::control) continue;
      if (piece.type == Type::unknown) {
        text += model_.unknown_surface;
        continue;
      }
      std::string_view rest = piece.text;
      if (at_begin && (model_.dummy_prefix || model_.remove_extra_whitespaces) &&
          rest.starts_with(kPieceSpace)) {
        rest.remove_prefix(kPieceSpace.size());
        // With remove_extra_whitespaces all spaces at the beginning are removed.
        space_taken = !model_.remove_extra_whitespaces;
      }
      text += with_spaces(rest);
    }
    return text;
  }

  std::vector<std::int32_t> text_bytes() const override {
    std::vector<std::int32_t> counts;
    for (const SentencePieceModel::Piece& piece : model_.pieces) {
      auto bytes = static_cast<std::int32_t>(with_spaces(piece.text).size());
      if (piece.type == Type::control) bytes = 0;
      else if (piece.type == Type::byte) bytes = 1;
      else if (piece.type == Type::unknown || piece.type == Type::unused) bytes = -1;
      counts.push_back(bytes);
    }
    return counts;
  }

  std::optional<std::int32_t> id_of(std::string_view token) const override {
    const auto found = ids_.find(token);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }

  std::string special_text_of(std::int32_t id) const override {
    return model_.pieces[static_cast<std::size_t>(id)].text;
  }

 private:
  SentencePieceModel model_;
  SentencePieceTables tables_;
  std::unordered_map<std::string_view, std::int32_t> ids_;  // keys point into the model's pieces
};

std::optional<std::int32_t> control_id(const SentencePieceModel& model, const std::string& text) {
  for (std::size_t id = 0; id < model.pieces.size(); ++id)
    if (model.pieces[id].type == Type::control && model.pieces[id].text == text)
      return static_cast<std::int32_t>(id);
  return std::nullopt;
}

std::optional<std::int32_t> configured_id(const SentencePieceModel& model,
                                          const std::optional<std::string>& text,
                                          const std::optional<std::int32_t>& own) {
  if (!text) return own;
  for (std::size_t id = 0; id < model.pieces.size(); ++id)
    if (model.pieces[id].text == *text) return static_cast<std::int32_t>(id);
  throw SentencePieceError("the tokenizer_config.json beside it has the special token \"" + *text +
                           "\", which this model lacks: correct the token there, or take a copy of the model "
                           "without that file");
}

// These transformers classes add bos unless add_bos_token says otherwise.
bool class_adds_bos(const std::string& name) {
  constexpr std::array<std::string_view, 3> kClasses{"LlamaTokenizer", "CodeLlamaTokenizer",
                                                     "GemmaTokenizer"};
  return std::any_of(kClasses.begin(), kClasses.end(), [&](std::string_view known) {
    return name == known || name == std::string(known) + "Fast";
  });
}

void set_special_tokens(const SentencePieceModel& model, const std::optional<SentencePieceConfig>& config,
                        TokenizerInfo& info) {
  info.bos = control_id(model, model.bos_piece);
  info.eos = control_id(model, model.eos_piece);
  if (!config) {
    if (info.bos) info.before = {*info.bos};
    return;
  }
  info.bos = configured_id(model, config->bos, info.bos);
  info.eos = configured_id(model, config->eos, info.eos);
  const auto add = [](const char* key, const std::optional<std::int32_t>& id,
                      std::vector<std::int32_t>& ids) {
    if (!id)
      throw SentencePieceError(std::string("the tokenizer_config.json beside it has ") + key +
                               ", and neither names such a token");
    ids = {*id};
  };
  if (config->add_bos.value_or(info.bos && class_adds_bos(config->tokenizer_class)))
    add("add_bos_token", info.bos, info.before);
  if (config->add_eos.value_or(false)) add("add_eos_token", info.eos, info.after);
}

}  // namespace

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& bytes,
                                              const std::optional<SentencePieceConfig>& config) {
  std::optional<SentencePieceModel> model = parse_sentencepiece_model(bytes);
  if (!model) return nullptr;
  TokenizerInfo info{.kind = "SentencePiece", .hash = xxh3_hex(std::as_bytes(std::span(bytes)))};
  info.vocab = static_cast<std::int64_t>(model->pieces.size());
  set_special_tokens(*model, config, info);
  return std::make_unique<SentencePieceTokenizer>(std::move(info), *std::move(model));
}

}  // namespace trainerd::io
