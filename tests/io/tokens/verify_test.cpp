// Data sets written by Megatron's own builder, and the reports of `data inspect` and `data verify` on good
// and damaged files.

#include "io/tokens/verify.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/hash/hash.h"
#include "io/tokens/megatron_index.h"
#include "io/tokens/token_source.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"
#include "tests/io/tokens/token_header.h"

using trainerd::base::DataError;
using namespace trainerd::io;
using namespace trainerd::test;
using Catch::Contains;
using namespace std::string_literals;

namespace {

const std::string kMegatron = std::string(TRAINERD_SOURCE_DIR) + "/tests/golden/megatron/";

std::vector<std::vector<std::int32_t>> golden_documents(const std::string& name) {
  return nlohmann::json::parse(read_file(kMegatron + "documents.json")).at(name);
}

/// A copy of the data set `narrow` that the test may damage.
class DamagedCopy {
 public:
  DamagedCopy() {
    for (const char* ending : {".bin", ".idx"})
      std::filesystem::copy_file(kMegatron + "narrow" + ending, dir_ / ("narrow"s + ending));
  }
  std::string path(const std::string& ending) const { return dir_ / ("narrow" + ending); }
  /// Writes `value` at byte `offset` of the index.
  template <class T>
  void put(std::int64_t offset, T value) const {
    std::string bytes = read_file(path(".idx"));
    std::memcpy(bytes.data() + offset, &value, sizeof(T));
    write_file(path(".idx"), bytes);
  }
  std::vector<std::string> problems(std::int64_t vocab = 0) const {
    InspectOptions options;
    options.vocab = vocab;
    return verify_data({path("")}, options).problems;
  }

 private:
  TempDir dir_;
};

// Number of sequences in `narrow`, which gives the offsets of its arrays.
std::int64_t narrow_sequences() { return read_megatron_index(kMegatron + "narrow.idx")->sequences; }

}  // namespace

TEST_CASE("a data set of Megatron's IndexedDatasetBuilder reads identically", "[megatron]") {
  const std::string name = GENERATE("narrow", "wide");
  const std::vector<std::vector<std::int32_t>> documents = golden_documents(name);
  std::vector<std::int32_t> all;
  for (const auto& document : documents) all.insert(all.end(), document.begin(), document.end());
  DataOptions options;
  options.format = DataFormat::tokens;
  TokenSource source({kMegatron + name}, options, static_cast<std::int64_t>(all.size()) - 1, 151936, 1,
                     SampleOrder::in_order);
  REQUIRE(source.tokens() == static_cast<std::int64_t>(all.size()));
  std::vector<std::int32_t> tokens(all.size());
  source.read(0, tokens);
  CHECK(tokens == all);
  std::size_t at = 0;
  std::int64_t first = 0;
  each_document(*read_megatron_index(kMegatron + name + ".idx"), [&](const Document& document) {
    REQUIRE(at < documents.size());
    CHECK(document.first == first);
    CHECK(document.tokens == static_cast<std::int64_t>(documents[at].size()));
    first += document.tokens;
    ++at;
  });
  CHECK(at == documents.size());
}

TEST_CASE("an inspection of a Megatron data set says its documents, by any of its names", "[megatron]") {
  const Inspection narrow = inspect_data(kMegatron + "narrow", {});
  const std::string& text = narrow.text;
  const nlohmann::json json = nlohmann::json::parse(narrow.json);
  CHECK(json.at("tokens") == 1979);
  CHECK(json.at("documents") == 60);
  CHECK(json.at("document_lengths").at("max") == 105);
  CHECK_THAT(text, Contains("Megatron uint16"));
  CHECK_THAT(text, Contains("tokens          1979\n"));
  CHECK_THAT(text, Contains("documents       60\n"));
  CHECK_THAT(text, Contains("min 0, median 30, p99 105, max 105 tokens"));
  CHECK(inspect_data(kMegatron + "narrow.bin", {}).text.substr(text.find('\n') + 5) ==
        text.substr(text.find('\n') + 1));
  CHECK_THAT(inspect_data(kMegatron + "narrow.idx", {}).text, Contains("documents       60\n"));
}

TEST_CASE("a sound data set has no problems, and its counts and checksum are those of its bytes",
          "[verify]") {
  InspectOptions options;
  options.vocab = 50257;
  for (const char* name : {"narrow", "narrow.bin", "narrow.idx"}) {
    const Verification found = verify_data({kMegatron + name}, options);
    CHECK(found.problems.empty());
    CHECK_THAT(found.text, Contains("1,979") && Contains("60 (5 empty)") && Contains("largest id     50238"));
    const std::string bytes = read_file(kMegatron + "narrow.bin");
    CHECK_THAT(found.text, Contains(xxh3_hex(std::as_bytes(std::span(bytes)))));
  }
  // A pattern that matches both data sets, and a text file.
  const TempDir dir;
  write_file(dir / "a.txt", std::string(10'000'000, 'x'));
  CHECK(verify_data({kMegatron + "*.bin", dir / "a.txt"}, {}).problems.empty());
  CHECK_THAT(verify_data({kMegatron + "*.bin", dir / "a.txt"}, {}).text, Contains("10,004,339"));
  CHECK_THROWS_AS(verify_data({dir / "none"}, {}), DataError);
}

TEST_CASE("every id of every file is compared with the vocabulary", "[verify]") {
  const TempDir dir;
  std::vector<std::uint16_t> ids(3'000'001, 7);
  ids[2'500'000] = 300;
  ids[3'000'000] = 300;
  write_file(dir / "a.bin", token_file_header(2, 3'000'001) + raw(ids));
  InspectOptions options;
  options.vocab = 300;
  const Verification found = verify_data({dir / "a.bin"}, options);
  REQUIRE(found.problems.size() == 1);
  CHECK_THAT(found.problems[0],
             Contains("a.bin") && Contains("token 300 at position 2500000") && Contains("2 such ids"));
  options.vocab = 301;
  CHECK(verify_data({dir / "a.bin"}, options).problems.empty());
}

TEST_CASE("what is torn or contradicts itself is named, whichever part it is", "[verify]") {
  const auto one_problem = [](const DamagedCopy& copy, const std::string& file, const std::string& what) {
    const std::vector<std::string> problems = copy.problems();
    REQUIRE(problems.size() == 1);
    CHECK_THAT(problems[0], Contains(file) && Contains(what) && Contains("make"));
  };
  const std::int64_t sequences = narrow_sequences(), offsets = 34 + 4 * sequences,
                     starts = 34 + 12 * sequences;
  {
    const DamagedCopy copy;
    std::filesystem::resize_file(copy.path(".bin"), 3956);
    one_problem(copy, "narrow.bin", "3956");
  }
  for (const std::uintmax_t bytes : {std::uintmax_t{20}, std::uintmax_t{1000}, std::uintmax_t{1769}}) {
    const DamagedCopy copy;
    std::filesystem::resize_file(copy.path(".idx"), bytes);
    one_problem(copy, "narrow.idx", "cut short");
  }
  {
    const DamagedCopy copy;
    copy.put<std::int32_t>(34 + 4 * 3, -2);
    one_problem(copy, "narrow.idx", "sequence 3 has -2 tokens");
  }
  {
    const DamagedCopy copy;
    copy.put<std::int64_t>(offsets + 8 * 5, 2);
    one_problem(copy, "narrow.idx", "sequence 5");
  }
  {
    const DamagedCopy copy;  // documents out of order
    copy.put<std::int64_t>(starts + 8 * 7, 0);
    one_problem(copy, "narrow.idx", "document 6 reaches");
  }
  {
    const DamagedCopy copy;
    copy.put<std::int64_t>(starts, 1);
    one_problem(copy, "narrow.idx", "first document begins at sequence 1");
  }
  {
    const DamagedCopy copy;
    copy.put<std::int64_t>(starts + 8 * 60, sequences - 1);
    one_problem(copy, "narrow.idx", "documents end at sequence");
  }
}

TEST_CASE("a checksum that was written down beside a file is compared", "[verify]") {
  const DamagedCopy copy;
  std::string bytes = read_file(copy.path(".bin"));
  write_file(copy.path(".bin.xxh128"), xxh3_hex(std::as_bytes(std::span(bytes))) + "  narrow.bin\n");
  CHECK(copy.problems().empty());
  bytes[100] = static_cast<char>(bytes[100] ^ 1);
  write_file(copy.path(".bin"), bytes);
  REQUIRE(copy.problems().size() == 1);
  CHECK_THAT(copy.problems()[0], Contains("narrow.bin: its checksum is") && Contains("damaged or changed"));
  write_file(copy.path(".bin.xxh128"), "none\n");
  CHECK_THAT(copy.problems().at(0), Contains("xxhsum -H2"));
}

TEST_CASE("a Megatron data set without documents is one", "[megatron]") {
  const TempDir dir;
  write_file(dir / "none.bin", "");
  write_file(dir / "none.idx", "MMIDIDX\0\0"s + raw<std::uint64_t>({1}) + "\4" + raw<std::uint64_t>({0, 1}) +
                                   raw<std::int64_t>({0}));
  const std::string text = inspect_data(dir / "none", {}).text;
  CHECK_THAT(
      text, Contains("Megatron int32") && Contains("tokens          0\n") && Contains("documents       0\n"));
  const Verification found = verify_data({dir / "none"}, {});
  CHECK(found.problems.empty());
  CHECK_THAT(found.text, Contains("documents      0\n"));
}

TEST_CASE("an id that is negative or has more than 31 bits is a problem without a vocabulary too",
          "[verify]") {
  const TempDir dir;
  const auto index_of = [](char code, std::int32_t tokens) {
    return "MMIDIDX\0\0"s + raw<std::uint64_t>({1}) + code + raw<std::uint64_t>({1, 2}) +
           raw<std::int32_t>({tokens}) + raw<std::int64_t>({0, 0, 1});
  };
  write_file(dir / "a.bin", raw<std::int32_t>({5, -2, 7, -3}));
  write_file(dir / "a.idx", index_of(4, 4));
  write_file(dir / "b.bin", raw<std::int64_t>({5, 7, std::int64_t{1} << 40}));
  write_file(dir / "b.idx", index_of(5, 3));
  for (const bool inspects : {false, true}) {
    const auto look = [&](const std::string& name) {
      if (!inspects) {
        const Verification found = verify_data({dir / name}, {});
        return std::pair(found.text, found.problems);
      }
      const Inspection found = inspect_data(dir / name, {});
      return std::pair(found.text, found.problems);
    };
    const auto [a, a_problems] = look("a");
    REQUIRE(a_problems.size() == 1);
    CHECK_THAT(a_problems[0], Contains("token -2 at position 1 (byte 4) is no id") && Contains("2 such ids"));
    CHECK_THAT(a, Contains("7 (vocab of at least 8)"));
    const auto [b, b_problems] = look("b");
    REQUIRE(b_problems.size() == 1);
    CHECK_THAT(b_problems[0], Contains("token beyond 31 bits at position 2 (byte 16) is no id"));
    CHECK_THAT(b, Contains("7 (vocab of at least 8)"));
  }
}
