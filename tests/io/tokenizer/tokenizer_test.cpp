#include "io/tokenizer/tokenizer.h"

#include <catch2/catch.hpp>
#include <thread>

#include "io/hash/hash.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"
#include "tests/io/tokenizer/mixed_text.h"

using trainerd::base::DataError;
using namespace trainerd::io;
using namespace trainerd::test;
using Catch::Matchers::Contains;

namespace {

const std::string kTokenizers = std::string(TRAINERD_SOURCE_DIR) + "/tests/io/tokenizers/";

nlohmann::json json_of(const std::string& path) { return nlohmann::json::parse(std::ifstream(path)); }

std::vector<std::int32_t> ids_of(const Tokenizer& tokenizer, const std::string& text,
                                 SpecialText specials = SpecialText::token) {
  std::vector<std::int32_t> ids;
  tokenizer.encoder(specials)->encode(text, ids);
  return ids;
}

std::string hash_of_ids(const std::vector<std::int32_t>& ids) {
  return xxh3_hex(std::as_bytes(std::span(ids)));
}

// Returns the error of opening a file with one part replaced.
std::string refusal_of(const nlohmann::json::json_pointer& place, const nlohmann::json& value,
                       const std::string& name = "gpt2.json") {
  const TempDir dir;
  nlohmann::json file = json_of(kTokenizers + name);
  file[place] = value;
  write_file(dir / "tokenizer.json", file.dump());
  return message_of<DataError>([&] { open_tokenizer(dir / "tokenizer.json"); });
}

}  // namespace

TEST_CASE("tokens of a megabyte of mixed scripts are those of the reference libraries") {
  const nlohmann::json expected = json_of(kTokenizers + "expected.json");
  const std::string text =
      MixedText(kTokenizers + "mix.json").make(expected["seed"], expected["bytes"].get<std::size_t>());
  REQUIRE(text.size() >= 1'000'000);
  for (const auto& [name, of_file] : expected["files"].items()) {
    INFO(name);
    const auto tokenizer = open_tokenizer(kTokenizers + name);
    const std::vector<std::int32_t> ids = ids_of(*tokenizer, text);
    CHECK(ids.size() == of_file["count"].get<std::size_t>());
    const auto first = of_file["first"].get<std::vector<std::int32_t>>();
    REQUIRE(first.size() == 200);
    CHECK(std::vector(ids.begin(), ids.begin() + 200) == first);
    CHECK(hash_of_ids(ids) == of_file["hash"].get<std::string>());
    // Special tokens as plain text, if the reference supports that.
    if (of_file.contains("plain_hash"))
      CHECK(hash_of_ids(ids_of(*tokenizer, text, SpecialText::plain)) ==
            of_file["plain_hash"].get<std::string>());
  }
}

TEST_CASE("odd texts by themselves have the tokens of the reference libraries") {
  const nlohmann::json expected = json_of(kTokenizers + "expected.json");
  for (const auto& [name, of_file] : expected["files"].items()) {
    const auto tokenizer = open_tokenizer(kTokenizers + name);
    REQUIRE(expected["cases"].size() == of_file["cases"].size());
    for (std::size_t i = 0; i < expected["cases"].size(); ++i) {
      INFO(name << " " << expected["cases"][i].dump(-1, ' ', true));
      CHECK(ids_of(*tokenizer, expected["cases"][i]) == of_file["cases"][i].get<std::vector<std::int32_t>>());
    }
    // The ids that the tokenizer's own rule adds around a text.
    std::vector<std::int32_t> around = tokenizer->info().before;
    for (const std::int32_t id : ids_of(*tokenizer, "a")) around.push_back(id);
    around.insert(around.end(), tokenizer->info().after.begin(), tokenizer->info().after.end());
    CHECK(around == of_file["around"].get<std::vector<std::int32_t>>());
  }
  CHECK(open_tokenizer(kTokenizers + "llama3.json")->info().before.size() == 1);
}

TEST_CASE("ids become the text again, and an encoder's answers do not depend on what it saw before") {
  MixedText mixed(kTokenizers + "mix.json");
  for (const char* name : {"gpt2.json", "llama3.json", "qwen2.json"}) {
    const auto tokenizer = open_tokenizer(kTokenizers + name);
    const std::string text = mixed.make(3, 100'000);
    const std::vector<std::int32_t> ids = ids_of(*tokenizer, text);
    // Qwen's normalizer changes the text, but a second pass changes nothing.
    if (std::string(name) != "qwen2.json") CHECK(tokenizer->decode(ids) == text);
    else CHECK(tokenizer->decode(ids_of(*tokenizer, tokenizer->decode(ids))) == tokenizer->decode(ids));
    const auto encoder = tokenizer->encoder(SpecialText::token);
    std::vector<std::int32_t> again;
    encoder->encode(mixed.make(4, 100'000), again);
    again.clear();
    encoder->encode(text, again);
    CHECK(again == ids);
    CHECK_THROWS_AS(tokenizer->decode(std::vector<std::int32_t>{1'000'000}), DataError);
    CHECK_THROWS_AS(tokenizer->decode(std::vector<std::int32_t>{-1}), DataError);
  }
  const auto bytes = open_tokenizer("bytes");
  CHECK(ids_of(*bytes, "a\xc3\xa9") == std::vector<std::int32_t>{97, 0xc3, 0xa9});
  CHECK(bytes->decode(std::vector<std::int32_t>{97, 0xc3, 0xa9}) == "a\xc3\xa9");
  CHECK(bytes->info().vocab == 256);
}

TEST_CASE("the bytes of a text's tokens are the bytes of the text") {
  const std::string text = MixedText(kTokenizers + "mix.json").make(3, 20'000);
  for (const char* name : {"gpt2.json", "llama3.json", "qwen2.json"}) {
    INFO(name);
    const auto tokenizer = open_tokenizer(kTokenizers + name);
    const std::vector<std::int32_t> bytes = tokenizer->text_bytes();
    REQUIRE(std::cmp_equal(bytes.size(), tokenizer->info().vocab));
    std::int64_t sum = 0;
    for (const std::int32_t id : ids_of(*tokenizer, text, SpecialText::plain))
      sum += bytes[static_cast<std::size_t>(id)];
    CHECK(std::cmp_equal(sum, tokenizer->normal_form(text).size()));
    if (const auto eos = tokenizer->info().eos) CHECK(bytes[static_cast<std::size_t>(*eos)] == 0);
  }
  // SentencePiece adds a space before a text.
  const auto pieces = open_tokenizer(kTokenizers + "bpe.model");
  const std::vector<std::int32_t> bytes = pieces->text_bytes();
  std::int64_t sum = 0;
  for (const std::int32_t id : ids_of(*pieces, "two words")) sum += bytes[static_cast<std::size_t>(id)];
  CHECK(sum == 10);
  CHECK(bytes[static_cast<std::size_t>(pieces->info().eos.value())] == 0);
}

TEST_CASE("tokens of characters with bytes become the text again, and tell their places in it") {
  std::string text = MixedText(kTokenizers + "mix.json").make(3, 50'000);
  // Llama 2's file adds a space after an added token.
  for (std::size_t at = 0; (at = text.find("tool_call>", at)) != std::string::npos;) text.erase(at, 4);
  for (const char* name : {"llama2.json", "mistral.json", "gemma.json", "bpe.model"}) {
    INFO(name);
    const auto tokenizer = open_tokenizer(kTokenizers + name);
    const auto encoder = tokenizer->encoder(SpecialText::plain);
    std::vector<std::int32_t> ids;
    std::vector<std::size_t> ends;
    encoder->encode_placed(text, ids, ends);
    CHECK(ids == ids_of(*tokenizer, text, SpecialText::plain));
    REQUIRE(ends.size() == ids.size());
    CHECK(ends.back() == text.size());
    // These tokenizers treat U+2581 in the text as a space.
    const auto with_plain_spaces = [](std::string_view part) {
      std::string out(part);
      for (std::size_t at = 0; (at = out.find("\xe2\x96\x81", at)) != std::string::npos;)
        out.replace(at, 3, " ");
      return out;
    };
    CHECK(tokenizer->decode(ids) == with_plain_spaces(text));
    // Each token's part of the text is the token's own text, except the space that the first one may have.
    std::size_t begin = 0, wrong = 0;
    const std::vector<std::int32_t> bytes = tokenizer->text_bytes();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto part = with_plain_spaces(std::string_view(text).substr(begin, ends[i] - begin));
      const auto own = static_cast<std::size_t>(bytes[static_cast<std::size_t>(ids[i])]);
      if (part.size() != own && i > 0) ++wrong;
      begin = ends[i];
    }
    CHECK(wrong == 0);
    CHECK_THROWS_AS(tokenizer->decode(std::vector<std::int32_t>{1'000'000}), DataError);
  }
  std::vector<std::int32_t> ids;
  std::vector<std::size_t> ends;
  CHECK_THROWS_AS(open_tokenizer(kTokenizers + "unigram.model")
                      ->encoder(SpecialText::token)
                      ->encode_placed("a", ids, ends),
                  EncodeError);
}

TEST_CASE("runs of a million equal characters are encoded and become the text again") {
  const auto tokenizer = open_tokenizer(kTokenizers + "qwen2.json");
  for (const std::string unit : {" ", "a", "\n", "\xe8\xaa\x9e", "=", "\xcc\x81"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    const std::vector<std::int32_t> ids = ids_of(*tokenizer, text);
    CHECK(tokenizer->decode(ids) == text);
  }
}

TEST_CASE("white space that a token takes can be a token too, as in the reference library") {
  const TempDir dir;
  nlohmann::json file = json_of(kTokenizers + "gpt2.json");
  auto next = static_cast<std::int32_t>(file["model"]["vocab"].size());
  for (const auto& token : file["added_tokens"]) next = std::max(next, token["id"].get<std::int32_t>() + 1);
  const std::int32_t right = next, left = next + 1, spaces = next + 2, tab = next + 3;
  const auto add = [&](const char* content, bool lstrip, bool rstrip) {
    nlohmann::json token = file["added_tokens"][0];
    token.update(
        {{"id", next++}, {"content", content}, {"lstrip", lstrip}, {"rstrip", rstrip}, {"special", false}});
    file["added_tokens"].push_back(token);
  };
  add("<r>", false, true);
  add("<l>", true, false);
  add("  ", false, false);
  add("\t", true, true);
  write_file(dir / "tokenizer.json", file.dump());
  const auto tokenizer = open_tokenizer(dir / "tokenizer.json");
  const std::int32_t a = *tokenizer->id_of("a"), b = *tokenizer->id_of("b");
  // Output of tokenizers 0.23.3.
  CHECK(ids_of(*tokenizer, "a<r>  b") == std::vector{a, right, spaces, b});
  CHECK(ids_of(*tokenizer, "a<r>    b") == std::vector{a, right, spaces, spaces, b});
  CHECK(ids_of(*tokenizer, "a<r>   <l>b") == std::vector{a, right, spaces, left, b});
  CHECK(ids_of(*tokenizer, "a<r> \t <l>b") == std::vector{a, right, left, b});
  CHECK(ids_of(*tokenizer, "a   <l>  <r>  b") == std::vector{a, spaces, left, spaces, right, spaces, b});
  CHECK(ids_of(*tokenizer, "a<r> \t\t b") == std::vector{a, right, b});
  CHECK(ids_of(*tokenizer, "a\tb") == std::vector{a, tab, b});
}

TEST_CASE("special tokens are known by the configuration beside the tokenizer") {
  const TempDir dir;
  write_file(dir / "tokenizer.json", read_file(kTokenizers + "qwen2.json"));
  CHECK_FALSE(open_tokenizer(dir / "tokenizer.json")->info().eos);
  write_file(dir / "tokenizer_config.json",
             R"({"bos_token": null, "eos_token": {"content": "<|im_end|>", "lstrip": false}})");
  const auto tokenizer = open_tokenizer(dir / "tokenizer.json");
  CHECK_FALSE(tokenizer->info().bos);
  CHECK(tokenizer->info().eos == tokenizer->id_of("<|im_end|>"));
  const std::string file = read_file(kTokenizers + "qwen2.json");
  CHECK(tokenizer->info().hash == xxh3_hex(std::as_bytes(std::span(file))));
  write_file(dir / "tokenizer_config.json", R"({"eos_token": "<|nothing|>"})");
  CHECK_THAT(message_of<DataError>([&] { open_tokenizer(dir / "tokenizer.json"); }),
             Contains("tokenizer_config.json: its special token \"<|nothing|>\" is not in"));
}

TEST_CASE("parts of a tokenizer.json that are not implemented are refused by name") {
  using Pointer = nlohmann::json::json_pointer;
  const auto json = [](const char* text) { return nlohmann::json::parse(text); };
  CHECK(refusal_of(Pointer("/model/ignore_merges"), false).empty());
  CHECK_THAT(refusal_of(Pointer("/model/type"), "WordPiece"), Contains("its model is WordPiece"));
  CHECK_THAT(refusal_of(Pointer("/model/byte_fallback"), true), Contains("its pre-tokenizer is ByteLevel"));
  CHECK_THAT(refusal_of(Pointer("/model/dropout"), 0.1), Contains("dropout"));
  CHECK_THAT(refusal_of(Pointer("/model/end_of_word_suffix"), "</w>"),
             Contains("end_of_word_suffix \"</w>\""));
  CHECK_THAT(refusal_of(Pointer("/model/unheard_of"), 1), Contains("\"unheard_of\", which is not known"));
  CHECK_THAT(refusal_of(Pointer("/normalizer"), json(R"({"type": "NFKC"})")),
             Contains("its normalizer is NFKC"));
  CHECK_THAT(refusal_of(Pointer("/pre_tokenizer"), json(R"({"type": "Metaspace"})")),
             Contains("its pre-tokenizer is Metaspace"));
  CHECK_THAT(refusal_of(Pointer("/pre_tokenizer"), nullptr), Contains("no ByteLevel pre-tokenizer"));
  CHECK_THAT(refusal_of(Pointer("/post_processor"), json(R"({"type": "BertProcessing"})")),
             Contains("its post-processor is BertProcessing"));
  CHECK_THAT(refusal_of(Pointer("/truncation"), json(R"({"max_length": 5})")), Contains("truncation"));
  CHECK_THAT(refusal_of(Pointer("/version"), "2.0"), Contains("its version is 2.0"));
  CHECK_THAT(refusal_of(Pointer("/added_tokens/0/single_word"), true), Contains("single_word"));
  CHECK_THAT(refusal_of(Pointer("/added_tokens/0/id"), 7), Contains("has the id 7"));
  CHECK_THAT(refusal_of(Pointer("/model/merges/3"), json(R"(["no", "token"])")), Contains("merge 3"));
  CHECK_THAT(refusal_of(Pointer("/model/vocab"), json(R"({"a": 0})")), Contains("lacks the byte 0"));
  const auto pieces = [&](const char* name, const char* place, const nlohmann::json& value) {
    return refusal_of(Pointer(place), value, name);
  };
  CHECK_THAT(pieces("mistral.json", "/pre_tokenizer/split", true), Contains("splits at spaces (split)"));
  CHECK_THAT(pieces("mistral.json", "/pre_tokenizer/prepend_scheme", "last"),
             Contains("prepend_scheme last"));
  CHECK_THAT(pieces("mistral.json", "/pre_tokenizer/replacement", "_"), Contains("another character than"));
  CHECK_THAT(pieces("mistral.json", "/pre_tokenizer", json(R"({"type": "ByteLevel"})")),
             Contains("its pre-tokenizer is ByteLevel"));
  CHECK_THAT(pieces("mistral.json", "/pre_tokenizer", nullptr),
             Contains("neither its normalizer nor its pre-tokenizer puts U+2581"));
  CHECK_THAT(pieces("gemma.json", "/pre_tokenizer/pattern/String", "x"), Contains("cuts at another text"));
  CHECK_THAT(pieces("gemma.json", "/normalizer", json(R"({"type": "NFKC"})")),
             Contains("its normalizer has the step NFKC"));
  CHECK_THAT(pieces("gemma.json", "/normalizer/content", "_"),
             Contains("its normalizer has the step Replace"));
  CHECK_THAT(pieces("llama2.json", "/decoder/decoders/3/start", 2), Contains("takes more than one space"));
  CHECK_THAT(pieces("llama2.json", "/decoder", json(R"({"type": "WordPiece"})")),
             Contains("its decoder is WordPiece"));
  nlohmann::json vocab = json_of(kTokenizers + "llama2.json")["model"]["vocab"];
  vocab.erase("<0x41>");
  CHECK_THAT(pieces("llama2.json", "/model/vocab", vocab), Contains("its vocabulary lacks <0x41>"));
  const auto split = [&](const std::string& expression) {
    nlohmann::json steps = json(R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {},
        "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false}]})");
    steps["pretokenizers"][0]["pattern"]["Regex"] = expression;
    return refusal_of(Pointer("/pre_tokenizer"), steps);
  };
  CHECK(split(R"([A-Z]+|\d{1,2}|(?i:x|y)\p{Lu}?)").empty());
  for (const char* part : {R"(\w)", R"(\p{Han})", R"(\b)", "(?<", "^", ".", R"(\v)"})
    CHECK_THAT(split("a" + std::string(part) + "b)]"), Contains("it has `" + std::string(part)));
  CHECK_THAT(split("a[[b]]"), Contains("it has `[b`"));
  CHECK_THAT(split("[a&&b]"), Contains("it has `&&`"));
  CHECK_THAT(split("a*"), Contains("it matches the empty text"));
  CHECK_THAT(split("a(b"), Contains("a(b"));
}

TEST_CASE("what is no tokenizer file is refused") {
  const TempDir dir;
  write_file(dir / "text", "words");
  write_file(dir / "cut.json", read_file(kTokenizers + "gpt2.json").substr(0, 5000));
  CHECK_THAT(message_of<DataError>([&] { open_tokenizer(dir / "none"); }), Contains("none: cannot be read"));
  CHECK_THAT(message_of<DataError>([&] { open_tokenizer(dir / "text"); }), Contains("neither"));
  CHECK_THAT(message_of<DataError>([&] { open_tokenizer(dir.path()); }), Contains("name the tokenizer.json"));
  CHECK_THAT(message_of<DataError>([&] { open_tokenizer(dir / "cut.json"); }),
             Contains("cut.json: not valid JSON"));
  // The bytes read last are shown as valid text.
  write_file(dir / "bytes.json", "{\"a\xff\": 1}");
  const std::string shown = message_of<DataError>([&] { open_tokenizer(dir / "bytes.json"); });
  CHECK_THAT(shown, Contains("bytes.json: not valid JSON"));
  CHECK(invalid_utf8(shown) == std::string::npos);
}

TEST_CASE("the first byte that is not UTF-8 is found") {
  const std::string ascii(20, 'a');
  for (const char* bad : {"\x80", "\xc0\xaf", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\xf5", "\xff", "\xe2\x82", "\xf0\x9f\x98"}) {
    CHECK(invalid_utf8(ascii + bad + ascii) == 20);
    CHECK(invalid_utf8(with_replacements(ascii + bad + ascii)) == std::string::npos);
  }
  for (const char* good : {"\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    CHECK(invalid_utf8(ascii + good + ascii) == std::string::npos);
}
