#include <catch2/catch.hpp>
#include <numeric>

#include "io/tokens/token_source.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using trainerd::base::DataError;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

const DataOptions kText{};
const DataOptions kTokens{.train = {}, .valid = {}, .format = DataFormat::tokens, .tokenizer = "bytes"};
const DataOptions kUint16{
    .train = {}, .valid = {}, .format = DataFormat::tokens, .tokenizer = "bytes", .dtype = TokenType::uint16};
const DataOptions kSynthetic{.train = {}, .valid = {}, .format = DataFormat::synthetic, .tokenizer = "bytes"};

TokenSource open(const std::vector<std::string>& paths, const DataOptions& options, std::int64_t seq_len,
                 std::int64_t vocab, SampleOrder order = SampleOrder::in_order, std::uint64_t seed = 1) {
  return {paths, options, seq_len, vocab, seed, order};
}

std::vector<std::int32_t> sample(TokenSource& source, std::int64_t cursor, std::size_t seq_len) {
  std::vector<std::int32_t> tokens(seq_len + 1, -1);
  source.read(cursor, tokens);
  return tokens;
}

using Sample = std::vector<std::int32_t>;

std::vector<std::uint16_t> counting(std::size_t n) {
  std::vector<std::uint16_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
  return tokens;
}

// The three headers, byte by byte as their writers produce them.
std::string llmc_header(std::int32_t magic, std::int32_t version, std::int32_t tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return raw(header);
}
std::string own_header(std::uint32_t width, std::uint64_t tokens, std::uint32_t version = 1) {
  std::string header = "\x89TRDTOK\n" + raw<std::uint32_t>({version, width}) + raw<std::uint64_t>({tokens});
  header.resize(64);
  return header;
}

}  // namespace

TEST_CASE("text is one token a byte and samples start every seq_len tokens") {
  const TempDir dir;
  write_file(dir / "a", "abcdefghij");
  TokenSource source = open({dir / "a"}, kText, 3, 256);
  CHECK(source.tokens() == 10);
  CHECK(source.samples() == 3);
  CHECK(sample(source, 0, 3) == Sample{'a', 'b', 'c', 'd'});
  CHECK(sample(source, 1, 3) == Sample{'d', 'e', 'f', 'g'});
  CHECK(sample(source, 2, 3) == Sample{'g', 'h', 'i', 'j'});
  CHECK(sample(source, 3, 3) == Sample{'a', 'b', 'c', 'd'});  // next epoch
}

TEST_CASE("bytes above 127 are tokens above 127") {
  const TempDir dir;
  write_file(dir / "a", "\x80\xff\x01");
  TokenSource source = open({dir / "a"}, kText, 2, 256);
  CHECK(sample(source, 0, 2) == Sample{128, 255, 1});
}

TEST_CASE("files follow each other without a gap, and a sample may span several") {
  const TempDir dir;
  write_file(dir / "a", "ab");
  write_file(dir / "b", "c");
  write_file(dir / "c", "defg");
  TokenSource source = open({dir / "a", dir / "b", dir / "c"}, kText, 4, 256);
  CHECK(source.samples() == 1);
  CHECK(sample(source, 0, 4) == Sample{'a', 'b', 'c', 'd', 'e'});
}

TEST_CASE("each flat token format is read as it is") {
  const TempDir dir;
  const std::vector<std::uint16_t> narrow = counting(9);
  const std::vector<std::uint32_t> wide{0, 70000, 128255, 3, 4, 5, 6, 7, 8};
  write_file(dir / "own16", own_header(2, 9) + raw(narrow));
  write_file(dir / "own32", own_header(4, 9) + raw(wide));
  write_file(dir / "gpt2.bin", llmc_header(20240520, 1, 9) + raw(narrow));
  write_file(dir / "llama3.bin", llmc_header(20240801, 7, 9) + raw(wide));
  write_file(dir / "nanogpt.bin", raw(narrow));
  for (const char* name : {"own16", "gpt2.bin", "nanogpt.bin"}) {
    INFO(name);
    TokenSource source = open({dir / name}, kUint16, 4, 50257);
    CHECK(source.tokens() == 9);
    CHECK(sample(source, 1, 4) == Sample{4, 5, 6, 7, 8});
  }
  for (const char* name : {"own32", "llama3.bin"}) {
    INFO(name);
    TokenSource source = open({dir / name}, kTokens, 4, 128256);
    CHECK(source.tokens() == 9);
    CHECK(sample(source, 0, 4) == Sample{0, 70000, 128255, 3, 4});
  }
}

TEST_CASE("a shuffled epoch holds every sample once, in an order of its own") {
  const TempDir dir;
  write_file(dir / "a", raw(counting(401)));
  TokenSource source = open({dir / "a"}, kUint16, 4, 65536, SampleOrder::shuffled);
  REQUIRE(source.samples() == 100);
  std::vector<std::vector<std::int32_t>> epochs(2);
  for (std::int64_t cursor = 0; cursor < 200; ++cursor) {
    const Sample tokens = sample(source, cursor, 4);
    CHECK(tokens[4] == tokens[0] + 4);
    epochs[static_cast<std::size_t>(cursor / 100)].push_back(tokens[0] / 4);
  }
  CHECK(epochs[0] != epochs[1]);
  std::vector<std::int32_t> all(100);
  std::iota(all.begin(), all.end(), 0);
  for (auto epoch : epochs) {
    CHECK(epoch != all);
    std::sort(epoch.begin(), epoch.end());
    CHECK(epoch == all);
  }
}

TEST_CASE("order depends on the seed and the cursor alone") {
  const TempDir dir;
  write_file(dir / "a", raw(counting(401)));
  TokenSource one = open({dir / "a"}, kUint16, 4, 65536, SampleOrder::shuffled, 7);
  TokenSource two = open({dir / "a"}, kUint16, 4, 65536, SampleOrder::shuffled, 7);
  TokenSource other = open({dir / "a"}, kUint16, 4, 65536, SampleOrder::shuffled, 8);
  std::vector<Sample> forwards, from_other;
  for (std::int64_t c = 0; c < 150; ++c) forwards.push_back(sample(one, c, 4));
  for (std::int64_t c = 0; c < 150; ++c) from_other.push_back(sample(other, c, 4));
  for (std::int64_t c = 149; c >= 0; --c) CHECK(sample(two, c, 4) == forwards[static_cast<std::size_t>(c)]);
  CHECK(forwards != from_other);
}

TEST_CASE("an order that starts again at a cursor has epochs of its own, each with every sample once") {
  const TempDir dir;
  write_file(dir / "a", raw(counting(401)));
  const auto epoch_from = [&](TokenSource& source, std::int64_t cursor) {
    std::vector<std::int32_t> firsts;
    for (std::int64_t c = cursor; c < cursor + 100; ++c) firsts.push_back(sample(source, c, 4)[0]);
    return firsts;
  };
  TokenSource before = open({dir / "a"}, kUint16, 4, 65536, SampleOrder::shuffled),
              again = open({dir / "a"}, kUint16, 4, 65536, SampleOrder::shuffled),
              same = open({dir / "a"}, kUint16, 4, 65536, SampleOrder::shuffled);
  again.start_order(37, 1);
  same.start_order(0, 0);
  CHECK(epoch_from(same, 0) == epoch_from(before, 0));
  std::vector<std::int32_t> epoch = epoch_from(again, 37);
  CHECK(epoch != epoch_from(before, 0));
  CHECK(epoch != epoch_from(before, 100));
  CHECK(epoch != epoch_from(again, 137));
  std::sort(epoch.begin(), epoch.end());
  std::vector<std::int32_t> all(100);
  for (std::size_t i = 0; i < 100; ++i) all[i] = static_cast<std::int32_t>(4 * i);
  CHECK(epoch == all);
}

TEST_CASE("a token outside the vocabulary is named with its file and position") {
  const TempDir dir;
  std::vector<std::uint16_t> tokens = counting(20);
  tokens[13] = 60000;
  write_file(dir / "bad.bin", raw(tokens));
  TokenSource source = open({dir / "bad.bin"}, kUint16, 4, 100);
  CHECK(sample(source, 0, 4) == Sample{0, 1, 2, 3, 4});
  const std::string what = message_of<DataError>([&] { sample(source, 3, 4); });
  CHECK(what.find(dir / "bad.bin") != std::string::npos);
  CHECK(what.find("60000") != std::string::npos);
  CHECK(what.find("position 13 (byte 26)") != std::string::npos);
}

TEST_CASE("a 32-bit token beyond 31 bits is outside the vocabulary, not negative") {
  const TempDir dir;
  write_file(dir / "a", own_header(4, 3) + raw<std::uint32_t>({1, 0xffffffffu, 2}));
  TokenSource source = open({dir / "a"}, kTokens, 2, 100);
  CHECK(message_of<DataError>([&] { sample(source, 0, 2); }).find("4294967295") != std::string::npos);
}

TEST_CASE("files that do not hold what they say are refused by name") {
  const TempDir dir;
  const std::string data = raw(counting(9));
  write_file(dir / "own-short", own_header(2, 10) + data);
  write_file(dir / "own-long", own_header(2, 8) + data);
  write_file(dir / "own-huge", own_header(2, ~0ull) + data);
  write_file(dir / "own-width", own_header(3, 6) + data);
  write_file(dir / "own-version", own_header(2, 9, 2) + data);
  write_file(dir / "own-header-cut", own_header(2, 9).substr(0, 20));
  write_file(dir / "llmc-short", llmc_header(20240520, 1, 10) + data);
  write_file(dir / "llmc-negative", llmc_header(20240520, 1, -1) + data);
  write_file(dir / "llmc-version", llmc_header(20240801, 1, 9) + data);
  write_file(dir / "llmc-header-cut", llmc_header(20240520, 1, 9).substr(0, 100));
  write_file(dir / "odd", data + "x");
  write_file(dir / "empty", "");
  write_file(dir / "header-only", own_header(2, 0));
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    INFO(entry.path());
    const std::string what = message_of<DataError>([&] { open({entry.path().string()}, kUint16, 2, 1000); });
    CHECK(what.find(entry.path().string()) != std::string::npos);
  }
}

TEST_CASE("a headerless file is refused where 16 bits cannot name the vocabulary") {
  const TempDir dir;
  write_file(dir / "a", raw(counting(9)));
  CHECK(open({dir / "a"}, kUint16, 2, 65536).tokens() == 9);
  CHECK_THROWS_AS(open({dir / "a"}, kUint16, 2, 65537), DataError);
}

TEST_CASE("a token file is not taken for text") {
  const TempDir dir;
  write_file(dir / "a", own_header(2, 9) + raw(counting(9)));
  CHECK(message_of<DataError>([&] { open({dir / "a"}, kText, 2, 256); }).find("data.format") !=
        std::string::npos);
}

TEST_CASE("an empty file is an error when named and skipped in a directory") {
  const TempDir dir;
  write_file(dir / "d/empty", "");
  write_file(dir / "d/full", "abcdef");
  CHECK(open({dir / "d"}, kText, 3, 256).tokens() == 6);
  CHECK(open({dir / "d/*"}, kText, 3, 256).tokens() == 6);
  CHECK(message_of<DataError>([&] {
          open({dir / "d/full", dir / "d/empty"}, kText, 3, 256);
        }).find(dir / "d/empty") != std::string::npos);
}

TEST_CASE("less data than one sample is an error that says how much is needed") {
  const TempDir dir;
  write_file(dir / "a", "abcd");
  CHECK(open({dir / "a"}, kText, 3, 256).samples() == 1);
  CHECK(message_of<DataError>([&] { open({dir / "a"}, kText, 4, 256); }).find("needs 5") !=
        std::string::npos);
}

TEST_CASE("a file truncated in mid-run is an error that names it") {
  const TempDir dir;
  write_file(dir / "a", std::string(100, 'x'));
  TokenSource source = open({dir / "a"}, kText, 9, 256);
  sample(source, 0, 9);
  std::filesystem::resize_file(dir / "a", 50);
  CHECK(sample(source, 0, 9) == Sample(10, 'x'));
  const std::string what = message_of<DataError>([&] { sample(source, 10, 9); });
  CHECK(what.find("truncated") != std::string::npos);
  CHECK(what.find(dir / "a") != std::string::npos);
}

TEST_CASE("a file that vanished or changed before it is opened again is an error") {
  const TempDir dir;
  write_file(dir / "a", std::string(100, 'x'));
  TokenSource gone = open({dir / "a"}, kText, 9, 256);
  std::filesystem::remove(dir / "a");
  CHECK(message_of<DataError>([&] { sample(gone, 0, 9); }).find(dir / "a") != std::string::npos);
  write_file(dir / "a", std::string(100, 'x'));
  TokenSource grown = open({dir / "a"}, kText, 9, 256);
  write_file(dir / "a", std::string(101, 'x'));
  CHECK(message_of<DataError>([&] { sample(grown, 0, 9); }).find("changed") != std::string::npos);
}

TEST_CASE("the fingerprint depends on names, sizes, format and seq_len of data, not on place or seed") {
  const TempDir dir;
  write_file(dir / "x/a", "abcdefgh");
  write_file(dir / "y/a", "abcdefgh");
  write_file(dir / "x/b", "abcdefgh");
  write_file(dir / "z/a", "abcdefghi");
  const std::string base = open({dir / "x/a"}, kText, 3, 256).fingerprint();
  CHECK(open({dir / "y/a"}, kText, 3, 256, SampleOrder::shuffled, 99).fingerprint() == base);
  CHECK(open({dir / "x/b"}, kText, 3, 256).fingerprint() != base);
  CHECK(open({dir / "z/a"}, kText, 3, 256).fingerprint() != base);
  CHECK(open({dir / "x/a"}, kText, 2, 256).fingerprint() != base);
  CHECK(open({dir / "x/a"}, kUint16, 3, 256).fingerprint() != base);
}

TEST_CASE("synthetic tokens need no files, fill the vocabulary evenly and repeat by seed") {
  TokenSource source = open({}, kSynthetic, 100, 50, SampleOrder::in_order, 3);
  CHECK(source.tokens() == std::int64_t{1} << 31);
  std::vector<int> counts(50);
  for (std::int64_t c = 0; c < 1000; ++c)
    for (const std::int32_t token : sample(source, c, 100)) ++counts.at(static_cast<std::size_t>(token));
  // 101,000 draws from 50 values: 2020 each, standard deviation 44.5; margin of five.
  for (const int count : counts) CHECK(count == Approx(2020).margin(223));
  TokenSource again = open({}, kSynthetic, 100, 50, SampleOrder::in_order, 3);
  TokenSource other = open({}, kSynthetic, 100, 50, SampleOrder::in_order, 4);
  CHECK(sample(again, 5, 100) == sample(source, 5, 100));
  CHECK(sample(other, 5, 100) != sample(source, 5, 100));
}

TEST_CASE("synthetic validation tokens are not the training tokens") {
  TokenSource train({}, kSynthetic, 100, 50, 3, SampleOrder::in_order);
  TokenSource valid({}, kSynthetic, 100, 50, 3, SampleOrder::in_order, kValidStream);
  // Independent draws agree at one place in 50: 202 of 10,100, standard deviation 14; margin of five.
  int equal = 0;
  for (std::int64_t c = 0; c < 100; ++c) {
    const Sample a = sample(train, c, 100), b = sample(valid, c, 100);
    for (std::size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i] ? 1 : 0;
  }
  CHECK(equal < 202 + 70);
}

TEST_CASE("neighbouring synthetic samples share their border token") {
  TokenSource source = open({}, kSynthetic, 7, 1000);
  for (std::int64_t c = 0; c < 20; ++c)
    CHECK(sample(source, c, 7).back() == sample(source, c + 1, 7).front());
}
