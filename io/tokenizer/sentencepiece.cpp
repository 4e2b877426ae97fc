#include "io/tokenizer/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <span>
#include <utility>
#include <vector>

#include "io/hash/hash.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

using sentencepiece::SentencePieceProcessor;

class PieceEncoder final : public Encoder {
 public:
  explicit PieceEncoder(const SentencePieceProcessor& processor) : processor_(processor) {}
  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    const auto status = processor_.Encode(text, &found_);
    if (!status.ok()) throw EncodeError("SentencePiece cannot encode it: " + status.ToString());
    ids.insert(ids.end(), found_.begin(), found_.end());
  }

 private:
  const SentencePieceProcessor& processor_;
  std::vector<int> found_;
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(TokenizerInfo info, std::unique_ptr<SentencePieceProcessor> processor)
      : Tokenizer(std::move(info)), processor_(std::move(processor)) {}

  std::unique_ptr<Encoder> encoder(SpecialText) const override {
    return std::make_unique<PieceEncoder>(*processor_);
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    for (const std::int32_t id : ids)
      if (id < 0 || id >= info().vocab)
        throw base::data_error("the tokenizer has no token " + std::to_string(id));
    std::string text;
    const auto status = processor_->Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    if (!status.ok()) throw base::data_error("SentencePiece cannot decode ids: " + status.ToString());
    return text;
  }
  std::vector<std::int32_t> text_bytes() const override {
    constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, which stands for a space
    std::vector<std::int32_t> counts;
    for (int id = 0; id < info().vocab; ++id) {
      const std::string& piece = processor_->IdToPiece(id);
      auto bytes = static_cast<std::int32_t>(piece.size());
      for (std::size_t at = 0; (at = piece.find(kSpace, at)) != std::string::npos; at += kSpace.size())
        bytes -= static_cast<std::int32_t>(kSpace.size()) - 1;
      if (processor_->IsControl(id)) bytes = 0;
      else if (processor_->IsByte(id)) bytes = 1;
      else if (processor_->IsUnknown(id) || processor_->IsUnused(id)) bytes = -1;
      counts.push_back(bytes);
    }
    return counts;
  }
  std::optional<std::int32_t> id_of(std::string_view token) const override {
    const int id = processor_->PieceToId(token);
    if (processor_->IdToPiece(id) != token) return std::nullopt;
    return id;
  }

 private:
  std::unique_ptr<SentencePieceProcessor> processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& bytes) {
  auto processor = std::make_unique<SentencePieceProcessor>();
  if (bytes.empty() || !processor->LoadFromSerializedProto(bytes).ok()) return nullptr;
  TokenizerInfo info{.kind = "SentencePiece", .hash = xxh3_hex(std::as_bytes(std::span(bytes)))};
  info.vocab = processor->GetPieceSize();
  if (info.vocab <= 0) return nullptr;
  if (processor->bos_id() >= 0) info.bos = processor->bos_id();
  if (processor->eos_id() >= 0) info.eos = processor->eos_id();
  return std::make_unique<SentencePieceTokenizer>(std::move(info), std::move(processor));
}

}  // namespace trainerd::io
