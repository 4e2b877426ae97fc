// Where documents begin within samples.

#include "io/tokens/document_boundaries.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "io/tokens/token_blend.h"
#include "io/tokens/token_source.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using namespace trainerd::io;
using namespace trainerd::test;
using Catch::Contains;

namespace {

const std::string kBoundaryData = std::string(TRAINERD_SOURCE_DIR) + "/tests/golden/megatron/narrow";

DataOptions boundary_options(std::int64_t end_token = DataOptions::kNoToken) {
  DataOptions options;
  options.format = DataFormat::tokens;
  options.document_mask = true;
  options.max_documents = 1000;
  options.end_token = end_token;
  return options;
}

}  // namespace

TEST_CASE("documents of a Megatron data set begin where its index says", "[documents]") {
  constexpr std::int64_t kSeq = 5;
  const std::vector<std::vector<std::int32_t>> documents =
      nlohmann::json::parse(
          read_file(std::string(TRAINERD_SOURCE_DIR) + "/tests/golden/megatron/documents.json"))
          .at("narrow");
  std::set<std::int64_t> begins;
  std::int64_t tokens = 0;
  for (const auto& document : documents) {
    if (!document.empty()) begins.insert(tokens);
    tokens += static_cast<std::int64_t>(document.size());
  }
  TokenSource source({kBoundaryData}, boundary_options(), kSeq, 65536, 1, SampleOrder::in_order);
  REQUIRE(source.tokens() == tokens);
  std::vector<std::int32_t> sample(kSeq + 1), starts;
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < source.samples(); ++i) {
    source.read(i, sample);
    source.read_document_starts(i, sample, starts);
    std::vector<std::int32_t> expected;
    for (std::int64_t s = 1; s <= kSeq; ++s)
      if (begins.contains(i * kSeq + s)) expected.push_back(static_cast<std::int32_t>(s));
    CHECK(starts == expected);
    found += static_cast<std::int64_t>(starts.size());
  }
  CHECK(found > 3);
}

TEST_CASE("documents of plain token files end with the end token, and with the file", "[documents]") {
  const TempDir dir;
  // 9 ends a document. The second file begins one, although the first does not end with 9.
  write_file(dir / "a.bin", raw(std::vector<std::uint16_t>{9, 1, 2, 9, 3, 9, 9, 4}));
  write_file(dir / "b.bin", raw(std::vector<std::uint16_t>{5, 6, 7, 9}));
  write_file(dir / "c.bin", raw(std::vector<std::uint16_t>{5, 6, 7, 8, 8}));
  DataOptions options = boundary_options(9);
  options.dtype = TokenType::uint16;
  const auto starts_of = [&](std::int64_t seq_len, std::int64_t sample) {
    TokenSource source({dir.path()}, options, seq_len, 100, 1, SampleOrder::in_order);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(seq_len) + 1), starts{77};
    source.read(sample, tokens);
    source.read_document_starts(sample, tokens, starts);
    return starts;
  };
  CHECK(starts_of(16, 0) == std::vector<std::int32_t>{1, 4, 6, 7, 8, 12});
  CHECK(starts_of(8, 0) == std::vector<std::int32_t>{1, 4, 6, 7, 8});
  CHECK(starts_of(8, 1) == std::vector<std::int32_t>{4});
  CHECK(starts_of(4, 0) == std::vector<std::int32_t>{1, 4});
  CHECK(starts_of(4, 1) == std::vector<std::int32_t>{2, 3, 4});
  // Up to the limit. 7 documents suffice, since the last target is in none of them.
  options.max_documents = 7;
  CHECK_NOTHROW(starts_of(16, 0));
  options.max_documents = 6;
  CHECK_THROWS_WITH(starts_of(16, 0), Contains("a.bin: the sample from position 0 on has 7 documents, and "
                                               "data.max_documents allows 6: set it to 7 or more"));
  options.document_mask = false, options.reset_positions = true;
  CHECK_NOTHROW(starts_of(16, 0));  // positions are not limited
  options.end_token = DataOptions::kNoToken;
  CHECK_THROWS_WITH(starts_of(16, 0), Contains("set data.end_token"));
}

TEST_CASE("documents of a split and of a blend begin where those of its sources do", "[documents]") {
  DataOptions options = boundary_options();
  options.train = {kBoundaryData};
  options.valid_fraction = 0.4;
  constexpr std::int64_t kSeq = 4;
  TokenBlend blend = TokenBlend::training(options, {.seq_len = kSeq, .vocab = 65536, .seed = 1});
  TokenSource source({kBoundaryData}, options, kSeq, 65536, 1,
                     TokenSource::Reading{.order = SampleOrder::shuffled, .part = DataPart::training});
  std::vector<std::int32_t> sample(kSeq + 1), starts, again;
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < blend.samples(); ++i) {
    blend.read(i, sample);
    blend.read_document_starts(i, sample, starts);
    source.read(i, sample);
    source.read_document_starts(i, sample, again);
    CHECK(starts == again);
    found += static_cast<std::int64_t>(starts.size());
  }
  CHECK(found > 0);
}
