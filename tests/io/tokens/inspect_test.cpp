// Reports of `data inspect`.

#include "io/tokens/inspect.h"

#include <catch2/catch.hpp>

#include "io/tokens/token_layout.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"
#include "tests/io/tokens/token_header.h"

using trainerd::base::DataError;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

std::string header(std::int64_t width, std::int64_t tokens) { return token_file_header(width, tokens); }

}  // namespace

TEST_CASE("an inspection says what a file holds") {
  const TempDir dir;
  write_file(dir / "a.txt", "hello <world>\nsecond\n");
  const std::string text = inspect_data(dir / "a.txt", {}).text;
  CHECK(text.find("hello <world>") != std::string::npos);
  CHECK(text.find("second") == std::string::npos);
  CHECK(text.find("21") != std::string::npos);
  CHECK(text.find("119 (vocab of at least 120)") != std::string::npos);  // 'w' is 119 and the largest byte
  write_file(dir / "b.bin", header(2, 3) + raw<std::uint16_t>({5, 50256, 7}));
  const std::string tokens = inspect_data(dir / "b.bin", {}).text;
  CHECK(tokens.find("trainerd uint16") != std::string::npos);
  CHECK(tokens.find("50256") != std::string::npos);
  const std::string both = inspect_data(dir.path(), {}).text;
  CHECK(both.find("a.txt") != std::string::npos);
  CHECK(both.find("b.bin") != std::string::npos);
}

TEST_CASE("an inspection goes on after a file that a run would refuse, and names it") {
  const TempDir dir;
  write_file(dir / "a.txt", "some text");
  write_file(dir / "b.txt.gz", "\x1f\x8b\x08" + std::string(20, '\0'));
  const Inspection inspection = inspect_data(dir.path(), {});
  CHECK(inspection.text.find("9") != std::string::npos);
  REQUIRE(inspection.problems.size() == 1);
  CHECK(inspection.problems[0].find(dir / "b.txt.gz") != std::string::npos);
  CHECK(inspection.problems[0].find("gzip") != std::string::npos);
  CHECK_THROWS_AS(inspect_data(dir / "b.txt.gz", {}), DataError);
}

TEST_CASE("an inspection of all ids finds the one that no sample meets") {
  // Samples of one file are 64 KiB at about every 90 KiB here: byte 70,000 lies between the first two.
  const TempDir dir;
  const std::string path = dir / "big.bin";
  constexpr std::int64_t kBytes = 90ll << 20;
  write_file(path, "");
  std::filesystem::resize_file(path, kBytes);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(70000);
    file << raw<std::uint16_t>({777, 776});
  }
  InspectOptions options{
      .format = DataFormat::tokens, .dtype = TokenType::uint16, .vocab = 500, .threads = 2};
  CHECK(inspect_data(path, options).problems.empty());
  CHECK(inspect_data(path, options).text.find("--all") != std::string::npos);
  options.all = true;
  const Inspection all = inspect_data(path, options);
  CHECK(all.text.find("777 (vocab of at least 778)") != std::string::npos);
  CHECK(all.text.find("--all") == std::string::npos);
  REQUIRE(all.problems.size() == 1);
  CHECK(all.problems[0].find("token 777 at position 35000 (byte 70000) is outside the vocabulary of 500") !=
        std::string::npos);
  CHECK(all.problems[0].find(path) != std::string::npos);
  options.vocab = 778;
  CHECK(inspect_data(path, options).problems.empty());
}
