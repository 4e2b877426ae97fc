#include <cerrno>
#include <filesystem>
#include <utility>

#include "io/hash/hash.h"
#include "io/text/json.h"
#include "io/tokenizer/byte_level_bpe.h"
#include "io/tokenizer/piece_bpe.h"
#include "io/tokenizer/sentencepiece.h"
#include "io/tokenizer/tokenizer.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

// Larger files are refused. A tokenizer of 260,000 tokens has about 20 MB.
constexpr std::int64_t kMaxTokenizerBytes = 256 << 20;

std::string whole_file(const std::string& path) {
  const base::UniqueFd fd = base::open_read(path);
  const std::int64_t bytes = fd ? base::file_bytes(fd.get()) : -1;
  if (bytes < 0) throw base::data_error(path + ": cannot be read: " + base::errno_text(errno));
  if (bytes > kMaxTokenizerBytes)
    throw base::data_error(path + ": a tokenizer's file has less than 256 MiB; this one has " +
                           std::to_string(bytes) + " bytes");
  std::string text(static_cast<std::size_t>(bytes), '\0');
  const std::int64_t got = base::read_at(fd.get(), std::as_writable_bytes(std::span(text)), 0);
  if (got != bytes)
    throw base::data_error(path + ": cannot be read: " + base::errno_text(got < 0 ? errno : EIO));
  return text;
}

class ByteEncoder final : public Encoder {
 public:
  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    ids.reserve(ids.size() + text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  void encode_placed(std::string_view text, std::vector<std::int32_t>& ids,
                     std::vector<std::size_t>& ends) override {
    encode(text, ids);
    for (std::size_t end = 1; end <= text.size(); ++end) ends.push_back(end);
  }
};

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() : Tokenizer({.kind = "bytes", .hash = "bytes", .vocab = 256}) {}
  std::unique_ptr<Encoder> encoder(SpecialText) const override { return std::make_unique<ByteEncoder>(); }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id < 0 || id > 255) throw base::data_error("the tokenizer has no token " + std::to_string(id));
      text += static_cast<char>(id);
    }
    return text;
  }
  std::vector<std::int32_t> text_bytes() const override { return std::vector<std::int32_t>(256, 1); }
  std::optional<std::int32_t> id_of(std::string_view) const override { return std::nullopt; }
};

// Returns the text of a special token in tokenizer_config.json, where it is a string or an object.
std::optional<std::string> special_text(const nlohmann::json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::nullopt;
  return found->is_object() ? string_member(*found, "content") : string_member(config, key);
}

std::optional<bool> flag(const nlohmann::json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (!found->is_boolean()) throw JsonError("\"" + std::string(key) + "\" is not true or false");
  return found->get<bool>();
}

std::string config_beside(const std::string& tokenizer_file) {
  return (std::filesystem::path(tokenizer_file).parent_path() / "tokenizer_config.json").string();
}

// Returns none if there is no such file.
std::optional<SentencePieceConfig> read_config(const std::string& file) {
  if (std::error_code error; !std::filesystem::exists(file, error)) return std::nullopt;
  try {
    const nlohmann::json config = parse_json(whole_file(file));
    if (!config.is_object()) throw JsonError("it is not an object");
    return SentencePieceConfig{.add_bos = flag(config, "add_bos_token"),
                               .add_eos = flag(config, "add_eos_token"),
                               .bos = special_text(config, "bos_token"),
                               .eos = special_text(config, "eos_token"),
                               .tokenizer_class = config.contains("tokenizer_class")
                                                      ? string_member(config, "tokenizer_class")
                                                      : ""};
  } catch (const JsonError& error) {
    throw base::data_error(file + ": " + error.what());
  }
}

std::unique_ptr<Tokenizer> open_json(const std::string& file, const std::string& text) {
  try {
    TokenizerJson json = parse_tokenizer_json(text);
    TokenizerInfo info{.kind = json.spaces ? "BPE with bytes" : "byte-level BPE",
                       .hash = xxh3_hex(std::as_bytes(std::span(text)))};
    info.vocab = vocab_of(json);
    info.special_text = true;
    info.before = json.before;
    info.after = json.after;
    const std::string config_file = config_beside(file);
    const SentencePieceConfig texts = read_config(config_file).value_or(SentencePieceConfig{});
    const auto id_of = [&](const std::optional<std::string>& token) -> std::optional<std::int32_t> {
      if (!token) return std::nullopt;
      for (const AddedToken& added : json.added)
        if (added.content == *token) return added.id;
      for (const auto& [known, id] : json.vocab)
        if (known == *token) return id;
      throw base::data_error(config_file + ": its special token \"" + *token + "\" is not in " + file);
    };
    info.bos = id_of(texts.bos);
    info.eos = id_of(texts.eos);
    for (const std::vector<std::int32_t>* ids : {&info.before, &info.after})
      for (const std::int32_t id : *ids)
        if (id >= info.vocab)
          throw JsonError("its post-processor adds the id " + std::to_string(id) + ", which it lacks");
    if (json.spaces) return std::make_unique<PieceBpe>(std::move(info), std::move(json));
    return std::make_unique<ByteLevelBpe>(std::move(info), std::move(json));
  } catch (const JsonError& error) {
    throw base::data_error(file + ": " + error.what());
  }
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& file) {
  if (file == "bytes") return std::make_unique<ByteTokenizer>();
  std::error_code error;
  if (std::filesystem::is_directory(file, error))
    throw base::data_error(file + ": this is a directory; name the tokenizer.json or tokenizer.model in it");
  const std::string text = whole_file(file);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') return open_json(file, text);
  try {
    if (auto tokenizer = open_sentencepiece(text, read_config(config_beside(file)))) return tokenizer;
  } catch (const SentencePieceError& refused) {
    throw base::data_error(file + ": " + refused.what());
  }
  throw base::data_error(file + ": this is neither a Hugging Face tokenizer.json nor a SentencePiece model");
}

}  // namespace trainerd::io
