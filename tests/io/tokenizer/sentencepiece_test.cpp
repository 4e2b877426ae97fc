#include "io/tokenizer/sentencepiece.h"

#include <bit>
#include <catch2/catch.hpp>

#include "io/text/utf8.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"
#include "tests/io/tokenizer/mixed_text.h"

using trainerd::base::DataError;
using namespace trainerd::io;
using namespace trainerd::test;
using Catch::Matchers::Contains;

namespace {

const std::string kPieces = std::string(TRAINERD_SOURCE_DIR) + "/tests/io/tokenizers/pieces/";

std::vector<std::int32_t> piece_ids(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids;
  tokenizer.encoder(SpecialText::token)->encode(text, ids);
  return ids;
}

// Fields of a protobuf message. A text of 128 bytes or more gets a length of two bytes.
std::string number_field(int field, int value) {
  std::string out;
  for (unsigned tag = static_cast<unsigned>(field) << 3;; tag >>= 7) {
    out += static_cast<char>(tag < 128 ? tag : (tag & 127u) | 128u);
    if (tag < 128) break;
  }
  return out + static_cast<char>(value);
}
std::string text_field(int field, const std::string& text) {
  std::string out = number_field(field, 0);
  out.pop_back();
  out[0] = static_cast<char>(out[0] | 2);
  out += static_cast<char>((text.size() & 127u) | 128u);
  out += static_cast<char>(text.size() >> 7);
  return out + text;
}
std::string piece(const std::string& text, float score = 0, int type = 1) {
  std::string bytes(4, '\0');
  const auto bits = std::bit_cast<std::uint32_t>(score);
  for (unsigned i = 0; i < 4; ++i) bytes[i] = static_cast<char>(bits >> (8 * i));
  return text_field(1, text_field(1, text) + "\x15" + bytes + number_field(3, type));
}
const std::string kUnknown = piece("<unk>", 0, 2);

// Returns the error of opening the file; "neither ..." if it is not a model.
std::string refusal_of(const std::string& model, const std::string& config = "") {
  const TempDir dir;
  write_file(dir / "tokenizer.model", model);
  if (!config.empty()) write_file(dir / "tokenizer_config.json", config);
  return message_of<DataError>([&] { open_tokenizer(dir / "tokenizer.model"); });
}

}  // namespace

TEST_CASE("random texts have the ids of SentencePiece and become the text again as it decodes them") {
  const nlohmann::json made = nlohmann::json::parse(std::ifstream(kPieces + "pieces.json"));
  REQUIRE(made["texts"].size() > 500);
  for (const auto& [name, of_model] : made["models"].items()) {
    const auto tokenizer = open_tokenizer(kPieces + name);
    const auto kept = tokenizer->encoder(SpecialText::token);
    for (std::size_t i = 0; i < made["texts"].size(); ++i) {
      INFO(name << " " << made["texts"][i].dump(-1, ' ', true));
      const auto expected = of_model["ids"][i].get<std::vector<std::int32_t>>();
      CHECK(piece_ids(*tokenizer, made["texts"][i]) == expected);
      std::vector<std::int32_t> again{7};  // with a warm cache
      kept->encode(made["texts"][i].get<std::string>(), again);
      CHECK(std::vector(again.begin() + 1, again.end()) == expected);
      CHECK(tokenizer->decode(expected) == of_model["decoded"][i].get<std::string>());
    }
  }
}

TEST_CASE("ids of a SentencePiece model do not depend on how a long text's words are kept") {
  MixedText mixed(std::string(TRAINERD_SOURCE_DIR) + "/tests/io/tokenizers/mix.json");
  for (const char* name : {"unigram.model", "spaces.model", "across.model"}) {
    const auto tokenizer = open_tokenizer(kPieces + name);
    const auto encoder = tokenizer->encoder(SpecialText::token);
    const std::string text = mixed.make(3, 60'000);
    std::vector<std::int32_t> first, second;
    encoder->encode(text, first);
    encoder->encode(text, second);
    CHECK(first == second);
    for (const std::int32_t id : first) REQUIRE((id >= 0 && id < tokenizer->info().vocab));
  }
}

TEST_CASE("what a SentencePiece model has and this program does not is refused by name") {
  const std::string model = kUnknown + piece("a", -1);
  REQUIRE(refusal_of(model).empty());
  CHECK_THAT(refusal_of(model + text_field(2, number_field(3, 3))), Contains("is of type WORD"));
  CHECK_THAT(refusal_of(model + text_field(2, number_field(3, 4))), Contains("is of type CHAR"));
  CHECK_THAT(refusal_of(model + text_field(2, number_field(3, 9))), Contains("is of type 9"));
  CHECK_THAT(refusal_of(model + text_field(2, number_field(24, 1))), Contains("treat_whitespace_as_suffix"));
  CHECK_THAT(refusal_of(model + text_field(2, number_field(60, 1))),
             Contains("the field 60 in its trainer_spec"));
  CHECK_THAT(refusal_of(model + text_field(3, number_field(5, 0))), Contains("has escape_whitespaces off"));
  CHECK_THAT(refusal_of(model + text_field(3, number_field(9, 0))),
             Contains("the field 9 in its normalizer_spec"));
  CHECK_THAT(refusal_of(model + text_field(5, text_field(2, "x"))), Contains("denormalizer_spec with rules"));
  CHECK_THAT(refusal_of(model + number_field(9, 1)), Contains("the field 9 in its file"));
  CHECK_THAT(refusal_of(model + text_field(1, number_field(9, 1))), Contains("the field 9 in its pieces"));
  CHECK_THAT(refusal_of(model + piece("b", 0, 7)), Contains("has a piece of type 7"));
  CHECK_THAT(refusal_of(model + text_field(2, number_field(3, 2)) + piece("b", 0, 5)),
             Contains("is of BPE and has an unused piece: b"));
  CHECK(refusal_of(model + piece("b", 0, 5)).empty());
}

TEST_CASE("a damaged SentencePiece model is refused") {
  const std::string model = kUnknown + piece("a", -1);
  CHECK_THAT(refusal_of(text_field(2, number_field(3, 2))), Contains("has no pieces"));
  CHECK_THAT(refusal_of(model + piece("", -1)), Contains("has no UTF-8 text for piece 2"));
  CHECK_THAT(refusal_of(model + piece("\xff", -1)), Contains("has no UTF-8 text for piece 2"));
  CHECK_THAT(refusal_of(model + piece(std::string(5000, 'a'))),
             Contains("has piece 2 of more than 4096 bytes"));
  CHECK_THAT(refusal_of(model + piece("b", std::numeric_limits<float>::infinity())),
             Contains("has no finite score for piece 2"));
  CHECK_THAT(refusal_of(model + piece("a")), Contains("has the text of piece 2 twice: a"));
  CHECK_THAT(refusal_of(model + piece("b", 0, 2)), Contains("has two unknown pieces"));
  CHECK_THAT(refusal_of(model + piece("<0x41>", 0, 6)),
             Contains("has a byte piece that it cannot use: <0x41>"));
  CHECK_THAT(refusal_of(model + piece("<0x41>", 0, 6) + text_field(2, number_field(35, 1))),
             Contains("falls back to bytes and lacks some of the 256 byte pieces"));
  CHECK_THAT(refusal_of(piece("a", -1)), Contains("has no unknown piece"));
  CHECK_THAT(refusal_of(model.substr(0, model.size() - 3)), Contains("neither"));
  const auto with_charsmap = [&](const std::string& charsmap) {
    return refusal_of(model + text_field(3, text_field(2, charsmap)));
  };
  CHECK_THAT(with_charsmap("abc"), Contains("precompiled_charsmap is damaged: the sizes of its parts"));
  CHECK_THAT(with_charsmap(std::string("\x04\0\0\0abcd\xff", 9)),
             Contains("precompiled_charsmap is damaged: its replacements are not UTF-8"));
}

TEST_CASE("a damaged charsmap is an error of the text that needs it") {
  // The root's child for the byte 0xc3 ends a rule; the leaf behind it holds the offset of the replacement.
  const auto encode = [](unsigned value, const std::string& text) {
    std::vector<std::uint32_t> units(256, 0);
    units[0] = 1u << 10;                           // children at 1 ^ byte
    units[1 ^ 0xc3] = 0xc3u | 1u << 8 | 2u << 10;  // ends a rule; its value is at index ^ 2
    units[1 ^ 0xc3 ^ 2] = 0x80000000u | value;
    std::string charsmap("\0\x04\0\0", 4);
    for (const std::uint32_t unit : units)
      for (unsigned i = 0; i < 4; ++i) charsmap += static_cast<char>(unit >> (8 * i));
    charsmap += std::string("b\0", 2);
    const TempDir dir;
    write_file(dir / "tokenizer.model", kUnknown + piece("a", -1) + text_field(3, text_field(2, charsmap)));
    const auto tokenizer = open_tokenizer(dir / "tokenizer.model");
    return message_of<EncodeError>([&] { piece_ids(*tokenizer, text); });
  };
  CHECK(encode(0, "aaa").empty());
  CHECK_THAT(encode(99, "\xc3\xa9"), Contains("its precompiled_charsmap is damaged"));
  CHECK_THAT(encode(0, "\xc3\xa9"), Contains("its precompiled_charsmap cuts a character in two"));
}

TEST_CASE("tokenizer_config.json names the tokens that begin and end a text of a SentencePiece model") {
  const TempDir dir;
  const std::string model = kUnknown + piece("<s>", 0, 3) + piece("</s>", 0, 3) + piece("a", -1);
  write_file(dir / "tokenizer.model", model);
  const auto around = [&](const std::string& config) {
    write_file(dir / "tokenizer_config.json", config);
    const TokenizerInfo info = open_tokenizer(dir / "tokenizer.model")->info();
    return std::pair(info.before, info.after);
  };
  using Ids = std::vector<std::int32_t>;
  CHECK(open_tokenizer(dir / "tokenizer.model")->info().before == Ids{1});  // without tokenizer_config.json
  CHECK(around(R"({"add_bos_token": true, "bos_token": "<s>"})") == std::pair(Ids{1}, Ids{}));
  CHECK(around(R"({"add_bos_token": false, "add_eos_token": true})") == std::pair(Ids{}, Ids{2}));
  CHECK(around(R"({"tokenizer_class": "LlamaTokenizer"})") == std::pair(Ids{1}, Ids{}));
  CHECK(around(R"({"tokenizer_class": "T5Tokenizer"})") == std::pair(Ids{}, Ids{}));
  CHECK(around(R"({"add_bos_token": true, "bos_token": {"content": "a"}})") == std::pair(Ids{3}, Ids{}));
  CHECK_THAT(refusal_of(model, R"({"eos_token": "<end>"})"), Contains("the special token \"<end>\""));
  CHECK_THAT(refusal_of(kUnknown + piece("a"), R"({"add_bos_token": true})"),
             Contains("has add_bos_token, and neither names such a token"));
  CHECK_THAT(refusal_of(model, R"({"add_bos_token": 1})"),
             Contains("\"add_bos_token\" is not true or false"));
}
