// Samples of the data: vocabulary and content.

#include "io/tokens/samples.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "io/tokens/token_source.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"
#include "tests/io/tokens/token_header.h"

using trainerd::base::DataError;
using namespace trainerd::io;
using namespace trainerd::test;
using Catch::Contains;

namespace {

TokenSource open_tokens(const std::vector<std::string>& paths, TokenType type, std::int64_t vocab) {
  DataOptions options;
  options.format = DataFormat::tokens;
  options.dtype = type;
  return {paths, options, 4, vocab, 1, SampleOrder::in_order};
}

std::string content_of(const std::vector<std::string>& paths, int threads = 2) {
  return TokenSource(paths, DataOptions{}, 4, 256, 1, SampleOrder::in_order).check_samples(threads);
}

std::int64_t sum_of(const std::vector<DataBlock>& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0},
                         [](std::int64_t sum, const DataBlock& b) { return sum + b.bytes; });
}

}  // namespace

TEST_CASE("samples meet the first and last byte of every file and are few, whatever the data's size") {
  const std::int64_t files = GENERATE(1, 3, 500, 5000, 20000);
  // 10 TB in all, of uneven sizes.
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < files; ++i) sizes.push_back(10'000'000'000'000 / files + 1001 * i + i % 3);
  const std::vector<DataBlock> blocks = sample_blocks(sizes);
  CHECK(sum_of(blocks) <= (256 << 20) + 4 * static_cast<std::int64_t>(blocks.size()));
  CHECK(sum_of(blocks) >= std::min<std::int64_t>(files * (64 << 20), 200 << 20));
  std::size_t at = 0;
  for (std::size_t file = 0; file < sizes.size(); ++file) {
    REQUIRE(at < blocks.size());
    REQUIRE(blocks[at].file == file);
    REQUIRE(blocks[at].offset == 0);
    std::int64_t end = 0, gap = 0;
    std::size_t count = 0;
    for (; at < blocks.size() && blocks[at].file == file; ++at, ++count) {
      REQUIRE(blocks[at].offset % 4 == 0);
      REQUIRE(blocks[at].offset >= end);
      gap = std::max(gap, blocks[at].offset - end);
      end = blocks[at].offset + blocks[at].bytes;
    }
    REQUIRE(end == sizes[file]);
    REQUIRE(count >= 3);
    REQUIRE(gap <= sizes[file] / static_cast<std::int64_t>(count - 1));  // even distances
  }
  CHECK(at == blocks.size());
}

TEST_CASE("small files are read whole") {
  const std::vector<std::int64_t> sizes{1, 70000, 0, 5 << 20};
  CHECK(sum_of(sample_blocks(sizes)) == 1 + 70000 + (5 << 20));
  CHECK(sum_of(all_blocks(std::vector<std::int64_t>{(9 << 20) + 3, 2})) == (9 << 20) + 5);
}

TEST_CASE(
    "the content tells files of the same name and size apart, wherever they lie and however many threads "
    "read them") {
  const TempDir dir;
  std::string text(300000, 'a');
  write_file(dir / "x/a", text);
  write_file(dir / "x/b", "bbbbb");
  write_file(dir / "y/a", text);
  write_file(dir / "y/b", "bbbbb");
  const std::string content = content_of({dir / "x"});
  CHECK(content.size() == 32);
  CHECK(content_of({dir / "y"}) == content);
  CHECK(content_of({dir / "y"}, 1) == content);
  CHECK(content_of({dir / "y"}, 7) == content);
  CHECK(content_of({dir / "x/b", dir / "x/a"}) != content);
  text[170000] = 'b';
  write_file(dir / "y/a", text);
  CHECK(content_of({dir / "y"}) != content);
  // The boundary between two files is part of the content.
  write_file(dir / "z/a", "abc");
  write_file(dir / "z/b", "defg");
  write_file(dir / "w/a", "abcd");
  write_file(dir / "w/b", "efg");
  CHECK(content_of({dir / "z"}) != content_of({dir / "w"}));
}

TEST_CASE("an id outside the vocabulary is found at the start by file, position and id") {
  const TempDir dir;
  std::vector<std::int32_t> ids(50000, 3);
  write_file(dir / "good.bin", raw(ids));
  ids[41234] = 50257;
  ids[41240] = -1;
  write_file(dir / "bad.bin", raw(ids));
  TokenSource source = open_tokens({dir / "good.bin", dir / "bad.bin"}, TokenType::int32, 50257);
  CHECK_THAT(
      message_of<DataError>([&] { source.check_samples(2); }),
      Contains("bad.bin: token 50257 at position 41234 (byte 164936) is outside the vocabulary of 50257"));
  CHECK_NOTHROW(open_tokens({dir / "good.bin"}, TokenType::int32, 50257).check_samples(2));
  ids[41234] = 3;
  write_file(dir / "negative.bin", raw(ids));
  CHECK_THAT(message_of<DataError>(
                 [&] { open_tokens({dir / "negative.bin"}, TokenType::int32, 50257).check_samples(2); }),
             Contains("token -1 at position 41240"));
}

TEST_CASE("an id after a header is found at its position among the tokens") {
  const TempDir dir;
  write_file(dir / "a", token_file_header(2, 5) + raw<std::uint16_t>({1, 2, 99, 3, 4}));
  CHECK_THAT(
      message_of<DataError>([&] { open_tokens({dir / "a"}, TokenType::automatic, 50).check_samples(1); }),
      Contains("token 99 at position 2 (byte 68)"));
}

TEST_CASE("int64 stated as 32 bits is refused although every half is in the vocabulary") {
  const TempDir dir;
  const TokenType stated = GENERATE(TokenType::int32, TokenType::uint32);
  std::vector<std::int64_t> ids(1000);
  std::iota(ids.begin(), ids.end(), 0);
  write_file(dir / "a.bin", raw(ids));
  CHECK_THAT(message_of<DataError>([&] { open_tokens({dir / "a.bin"}, stated, 50257).check_samples(1); }),
             Contains("a.bin") && Contains("holds int64, not " + std::string(name_of(stated))) &&
                 Contains("set data.dtype: int64"));
  TokenSource stated_rightly = open_tokens({dir / "a.bin"}, TokenType::int64, 50257);
  CHECK_NOTHROW(stated_rightly.check_samples(1));
  CHECK(stated_rightly.tokens() == 1000);
  std::vector<std::int32_t> sample(5);
  stated_rightly.read(1, sample);
  CHECK(sample == std::vector<std::int32_t>{4, 5, 6, 7, 8});
  CHECK_THAT(message_of<DataError>([&] { open_tokens({dir / "a.bin"}, TokenType::automatic, 50257); }),
             Contains("as in a file of int64"));
  ids[500] = std::int64_t{1} << 32;  // with the stated width, one id is too large
  write_file(dir / "a.bin", raw(ids));
  CHECK_THAT(
      message_of<DataError>([&] { open_tokens({dir / "a.bin"}, TokenType::int64, 50257).check_samples(1); }),
      Contains("token beyond 31 bits at position 500"));
}

TEST_CASE("int32 stated as uint16 is refused although every half is in the vocabulary") {
  const TempDir dir;
  std::vector<std::int32_t> ids(1000);
  std::iota(ids.begin(), ids.end(), 0);
  write_file(dir / "a.bin", raw(ids));
  CHECK_THAT(
      message_of<DataError>([&] { open_tokens({dir / "a.bin"}, TokenType::uint16, 50257).check_samples(1); }),
      Contains("a.bin") && Contains("set data.dtype: int32"));
  ids[500] = 1 << 16;  // one id needs more than 16 bits, so the file cannot be told from one of uint16
  write_file(dir / "a.bin", raw(ids));
  CHECK_NOTHROW(open_tokens({dir / "a.bin"}, TokenType::uint16, 50257).check_samples(1));
}
