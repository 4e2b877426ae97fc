// Files that are neither text nor tokens are refused, and the message names their type.

#include <catch2/catch.hpp>

#include "io/tokens/token_source.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using trainerd::base::DataError;
using namespace trainerd::io;
using namespace trainerd::test;
using Catch::Contains;
using namespace std::string_literals;

namespace {

DataOptions tokens_of(TokenType type) {
  DataOptions options;
  options.format = DataFormat::tokens;
  options.dtype = type;
  return options;
}

std::string refusal(const std::string& path, const DataOptions& options, std::int64_t vocab = 50257) {
  return message_of<DataError>([&] { TokenSource({path}, options, 2, vocab, 1, SampleOrder::in_order); });
}

std::string index(std::uint8_t type, const std::vector<std::int32_t>& lengths, std::int64_t width) {
  std::vector<std::int64_t> offsets, documents{0};
  std::int64_t at = 0;
  for (const std::int32_t length : lengths) {
    offsets.push_back(at);
    at += width * length;
    documents.push_back(static_cast<std::int64_t>(offsets.size()));
  }
  return "MMIDIDX\0\0"s + raw<std::uint64_t>({1}) + raw<std::uint8_t>({type}) +
         raw<std::uint64_t>({lengths.size(), documents.size()}) + raw(lengths) + raw(offsets) +
         raw(documents);
}

std::vector<std::int32_t> all_tokens(const std::vector<std::string>& paths, const DataOptions& options,
                                     std::size_t n) {
  TokenSource source(paths, options, static_cast<std::int64_t>(n) - 1, 50257, 1, SampleOrder::in_order);
  REQUIRE(source.tokens() == static_cast<std::int64_t>(n));
  std::vector<std::int32_t> tokens(n);
  source.read(0, tokens);
  return tokens;
}

}  // namespace

TEST_CASE("a file with the magic number of another kind is refused by that kind, as text and as tokens") {
  const TempDir dir;
  const std::string rest(600, '\1');
  const auto [bytes, what] = GENERATE_COPY(table<std::string, std::string>({
      {"\x1f\x8b\x08\0\0\0\0\0\0\x03"s + rest, "gzip"},
      {"\x28\xb5\x2f\xfd"s + rest, "zstd"},
      {"\xfd"
       "7zXZ\0"s +
           rest,
       "xz"},
      {"BZh91AY&SY"s + rest, "bzip2"},
      {"PK\x03\x04"s + rest, "zip"},
      {std::string(257, 'x') + "ustar\0"s + rest, "tar"},
      {"MMIDIDX\0\0"s + rest, "Megatron"},
      {"PAR1\x15"s + rest, "Parquet"},
      {"ARROW1\0\0"s + rest, "Arrow"},
      {"\xff\xff\xff\xff\x78\x01\0\0"s + rest, "Arrow"},
      {"\x93NUMPY\x01\0"s + rest, "NumPy"},
      {"\x20\0\0\0\0\0\0\0{\"a\":{"s + rest, "safetensors"},
      {"\x7f"
       "ELF"s +
           rest,
       "ELF"},
  }));
  INFO(what);
  write_file(dir / "file", bytes);
  for (const DataOptions& options :
       {DataOptions{}, tokens_of(TokenType::automatic), tokens_of(TokenType::uint16)}) {
    const std::string message = refusal(dir / "file", options);
    CHECK_THAT(message, Contains(dir / "file") && Contains(what));
  }
}

TEST_CASE("a token file without a header is refused until its type is stated") {
  const TempDir dir;
  write_file(dir / "narrow.bin", raw<std::uint16_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}));
  write_file(dir / "wide.bin", raw<std::int32_t>({1, 2, 3, 40000, 5, 6, 7, 8}));
  CHECK_THAT(refusal(dir / "narrow.bin", tokens_of(TokenType::automatic)),
             Contains("narrow.bin") && Contains("data.dtype") && Contains("uint16"));
  CHECK_THAT(refusal(dir / "wide.bin", tokens_of(TokenType::automatic)), Contains("as in a file of int32"));
  CHECK(all_tokens({dir / "narrow.bin"}, tokens_of(TokenType::uint16), 16)[15] == 16);
  CHECK(all_tokens({dir / "wide.bin"}, tokens_of(TokenType::int32), 8) ==
        std::vector<std::int32_t>{1, 2, 3, 40000, 5, 6, 7, 8});
  CHECK(all_tokens({dir / "wide.bin"}, tokens_of(TokenType::uint32), 8)[3] == 40000);
  CHECK(all_tokens({dir / "narrow.bin"}, tokens_of(TokenType::uint8), 32)[2] == 2);
}

TEST_CASE("a type that contradicts a header is refused") {
  const TempDir dir;
  write_file(dir / "a", "\x89TRDTOK\n"s + raw<std::uint32_t>({1, 4}) + raw<std::uint64_t>({3}) +
                            std::string(40, '\0') + raw<std::uint32_t>({1, 2, 3}));
  CHECK_THAT(refusal(dir / "a", tokens_of(TokenType::uint16)),
             Contains("header says uint32") && Contains("data.dtype is uint16"));
  CHECK(all_tokens({dir / "a"}, tokens_of(TokenType::int32), 3)[2] == 3);
}

TEST_CASE("Megatron's tokens are read as the index beside them says") {
  const TempDir dir;
  write_file(dir / "wide.bin", raw<std::int32_t>({7, 50256, 9, 1}));
  write_file(dir / "wide.idx", index(4, {3, 1}, 4));
  write_file(dir / "narrow.bin", raw<std::uint16_t>({7, 50256, 9, 1}));
  write_file(dir / "narrow.idx", index(8, {1, 3}, 2));
  const std::vector<std::int32_t> tokens{7, 50256, 9, 1};
  CHECK(all_tokens({dir / "wide.bin"}, tokens_of(TokenType::automatic), 4) == tokens);
  CHECK(all_tokens({dir / "narrow.bin"}, tokens_of(TokenType::automatic), 4) == tokens);
  // Indices found in a directory or by a pattern are not data files.
  const std::vector<std::int32_t> both{7, 50256, 9, 1, 7, 50256, 9, 1};
  CHECK(all_tokens({dir.path()}, tokens_of(TokenType::automatic), 8) == both);
  CHECK(all_tokens({dir / "*"}, tokens_of(TokenType::automatic), 8) == both);
  CHECK(all_tokens({dir / "wide.idx"}, tokens_of(TokenType::automatic), 4) == tokens);
  write_file(dir / "alone.idx", index(4, {3, 1}, 4));
  CHECK_THAT(refusal(dir / "alone.idx", tokens_of(TokenType::automatic)),
             Contains("alone.bin: no such file"));
  CHECK_THAT(refusal(dir / "*.idx", tokens_of(TokenType::automatic)), Contains("index"));
  CHECK_THAT(refusal(dir / "wide.bin", tokens_of(TokenType::uint16)), Contains("index says int32"));
}

TEST_CASE("Megatron's tokens of every integer type are read, and a prefix is the name of a data set") {
  const TempDir dir;
  const std::vector<std::int32_t> tokens{7, 100, 9, 1};
  const auto reads = [&](const std::string& name, const std::string& bytes, std::uint8_t code, int width) {
    write_file(dir / (name + ".bin"), bytes);
    write_file(dir / (name + ".idx"), index(code, {3, 1}, width));
    CHECK(all_tokens({dir / (name + ".bin")}, tokens_of(TokenType::automatic), 4) == tokens);
    CHECK(all_tokens({dir / name}, tokens_of(TokenType::automatic), 4) == tokens);
  };
  reads("a", raw<std::uint8_t>({7, 100, 9, 1}), 1, 1);
  reads("b", raw<std::int8_t>({7, 100, 9, 1}), 2, 1);
  reads("c", raw<std::int16_t>({7, 100, 9, 1}), 3, 2);
  reads("d", raw<std::int32_t>({7, 100, 9, 1}), 4, 4);
  reads("e", raw<std::int64_t>({7, 100, 9, 1}), 5, 8);
  reads("f", raw<std::uint16_t>({7, 100, 9, 1}), 8, 2);
  // Negative and very large ids are outside every vocabulary.
  const auto refused = [&](const std::string& name, const std::string& bytes, std::uint8_t code, int width) {
    write_file(dir / (name + ".bin"), bytes);
    write_file(dir / (name + ".idx"), index(code, {3, 1}, width));
    CHECK_THAT(message_of<DataError>([&] { all_tokens({dir / name}, tokens_of(TokenType::automatic), 4); }),
               Contains("at position 2"));
  };
  refused("g", raw<std::int8_t>({7, 100, -1, 1}), 2, 1);
  refused("h", raw<std::int64_t>({7, 100, std::int64_t{1} << 40, 1}), 5, 8);
}

TEST_CASE("a Megatron index that its data contradicts, or of a type that is not read, is refused") {
  const TempDir dir;
  const std::string data = raw<std::int32_t>({1, 2, 3, 4});
  const auto refused = [&](const std::string& name, const std::string& idx, const std::string& bin) {
    write_file(dir / (name + ".bin"), bin);
    write_file(dir / (name + ".idx"), idx);
    const std::string message = refusal(dir / (name + ".bin"), tokens_of(TokenType::automatic));
    CHECK_THAT(message, Contains(name + ".idx"));
    return message;
  };
  CHECK_THAT(refused("short", index(4, {2, 2}, 4), data.substr(0, 12)),
             Contains("16 bytes") && Contains("12"));
  CHECK_THAT(refused("float", index(7, {4}, 4), data), Contains("float32"));
  CHECK_THAT(refused("double", index(6, {2}, 8), data), Contains("float64"));
  CHECK_THAT(refused("old", "TNTIDX\0\0"s + std::string(60, '\1'), data),
             Contains("TNTIDX") && Contains("MMIDIDX"));
  CHECK_THAT(refused("long", index(4, {4}, 4) + "xy", data), Contains("appended to"));
  CHECK_THAT(refused("modes", index(4, {2, 2}, 4) + "\0\1"s, data), Contains("mode for each sequence"));
  CHECK_THAT(refused("code", index(77, {4}, 4), data), Contains("77"));
  CHECK_THAT(refused("cut", index(4, {4}, 4).substr(0, 40), data), Contains("cut short"));
  CHECK_THAT(refused("negative", index(4, {-4}, 4), data), Contains("-4"));
  std::string version = index(4, {4}, 4);
  version[9] = 2;
  CHECK_THAT(refused("version", version, data), Contains("version 2"));
}

TEST_CASE("text is not taken for tokens, whatever type is stated") {
  const TempDir dir;
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines +=
        "{\"text\": \"gr\xc3\xbc\xc3\x9f"
        "e\"}\n";
  write_file(dir / "a.jsonl", lines);
  write_file(dir / "a.txt", std::string(400, 'a'));
  for (const TokenType type : {TokenType::automatic, TokenType::uint16, TokenType::int32}) {
    CHECK_THAT(refusal(dir / "a.jsonl", tokens_of(type)), Contains("a.jsonl") && Contains("JSON lines"));
    CHECK_THAT(refusal(dir / "a.txt", tokens_of(type)), Contains("a.txt") && Contains("format: text"));
  }
  CHECK(refusal(dir / "a.txt", tokens_of(TokenType::uint8)).empty());  // bytes were requested
}

TEST_CASE("JSON lines and binary files are not taken for text") {
  const TempDir dir;
  write_file(dir / "a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
  CHECK_THAT(refusal(dir / "a.jsonl", DataOptions{}), Contains("JSON lines") && Contains(".txt"));
  std::filesystem::rename(dir / "a.jsonl", dir / "a.txt");
  CHECK(refusal(dir / "a.txt", DataOptions{}).empty());
  write_file(dir / "train.bin", raw<std::uint16_t>({464, 3290, 11, 290}));
  CHECK_THAT(refusal(dir / "train.bin", DataOptions{}),
             Contains("NUL") && Contains("data.format: tokens") && Contains("uint8"));
}
