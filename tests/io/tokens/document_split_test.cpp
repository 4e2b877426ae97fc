// Validation documents chosen from the training data.

#include "io/tokens/document_split.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/tokens/token_blend.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using trainerd::base::DataError;
using namespace trainerd::io;
using namespace trainerd::test;
using Catch::Contains;

namespace {

const std::string kFixture = std::string(TRAINERD_SOURCE_DIR) + "/tests/golden/megatron/";
using Tokens = std::vector<std::int32_t>;

/// Returns the tokens of the fixture's validation documents, or of the others, concatenated.
Tokens expected_part(const std::string& name, bool validation, double fraction) {
  const std::vector<Tokens> documents =
      nlohmann::json::parse(read_file(kFixture + "documents.json")).at(name);
  Tokens all;
  for (std::size_t i = 0; i < documents.size(); ++i)
    if (is_validation_document(kFixture + name + ".bin", static_cast<std::int64_t>(i), fraction) ==
        validation)
      all.insert(all.end(), documents[i].begin(), documents[i].end());
  return all;
}

Tokens read_part(const std::string& name, DataPart part, double fraction, std::size_t tokens) {
  DataOptions options;
  options.format = DataFormat::tokens;
  options.valid_fraction = fraction;
  TokenSource source({kFixture + name}, options, static_cast<std::int64_t>(tokens) - 1, 151936, 1,
                     TokenSource::Reading{.order = SampleOrder::in_order, .part = part});
  REQUIRE(source.tokens() == static_cast<std::int64_t>(tokens));
  Tokens read(tokens);
  source.read(0, read);
  return read;
}

}  // namespace

TEST_CASE("whole documents are for validation, and all others for training", "[split]") {
  const std::string name = GENERATE("narrow", "wide");
  const double fraction = GENERATE(0.2, 0.5, 0.8);
  const Tokens training = expected_part(name, false, fraction),
               validation = expected_part(name, true, fraction);
  REQUIRE(training.size() > 10);
  REQUIRE(validation.size() > 10);
  CHECK(read_part(name, DataPart::training, fraction, training.size()) == training);
  CHECK(read_part(name, DataPart::validation, fraction, validation.size()) == validation);
  CHECK(training.size() + validation.size() == expected_part(name, false, 0).size());
}

TEST_CASE("a document's part depends on its number and its file's name alone", "[split]") {
  for (const double fraction : {0.01, 0.1, 0.5}) {
    int chosen = 0, same = 0;
    for (std::int64_t document = 0; document < 20'000; ++document) {
      const bool here = is_validation_document("/a/x.bin", document, fraction);
      REQUIRE(here == is_validation_document("x.bin", document, fraction));
      // A larger fraction includes all documents of a smaller one.
      if (here) REQUIRE(is_validation_document("x.bin", document, fraction * 1.5));
      chosen += here ? 1 : 0;
      same += here && is_validation_document("y.bin", document, fraction) ? 1 : 0;
    }
    const double n = 20'000, sigma = std::sqrt(n * fraction * (1 - fraction));
    CHECK(std::abs(chosen - n * fraction) < 4 * sigma);
    CHECK(std::abs(same - n * fraction * fraction) < 4 * std::sqrt(n) * fraction);
  }
}

TEST_CASE("a split of a blend is one of each source, and its validation data takes each document once",
          "[split]") {
  DataOptions options;
  options.format = DataFormat::tokens;
  options.valid_fraction = 0.4;
  options.sources = {{.path = {kFixture + "narrow"}, .weight = 1},
                     {.path = {kFixture + "wide"}, .weight = 3}};
  const SampleShape shape{.seq_len = 8, .vocab = 151936, .seed = 1};
  TokenBlend valid = TokenBlend::validation(options, shape);
  const std::vector<Tokens> parts{expected_part("narrow", true, 0.4), expected_part("wide", true, 0.4)};
  REQUIRE(valid.sources().size() == 2);
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(valid.sources()[i].samples == (static_cast<std::int64_t>(parts[i].size()) - 1) / 8);
  REQUIRE(blend_after({}, valid.sources()).length() == valid.samples());
  std::vector<std::size_t> next(2, 0);
  for (std::int64_t cursor = 0; cursor < valid.samples(); ++cursor) {
    Tokens sample(9);
    valid.read(cursor, sample);
    const auto is_next = [&](std::size_t i) {
      return next[i] + 9 <= parts[i].size() &&
             std::equal(sample.begin(), sample.end(),
                        parts[i].begin() + static_cast<std::ptrdiff_t>(next[i]));
    };
    REQUIRE((is_next(0) || is_next(1)));
    next[is_next(0) ? 0 : 1] += 8;
  }
  const TokenBlend training = TokenBlend::training(options, shape);
  CHECK(training.tokens() + valid.tokens() == 1979 + 2360);
  CHECK(training.sources()[0].files != valid.sources()[0].files);
}

TEST_CASE("files that do not say where their documents begin are refused by name", "[split]") {
  const TempDir dir;
  write_file(dir / "flat.bin", raw(std::vector<std::uint16_t>(1000, 3)));
  DataOptions options;
  options.format = DataFormat::tokens;
  options.dtype = TokenType::uint16;
  options.valid_fraction = 0.1;
  options.train = {dir / "flat.bin"};
  const SampleShape shape{.seq_len = 8, .vocab = 100, .seed = 1};
  CHECK_THROWS_WITH(TokenBlend::training(options, shape),
                    Contains("flat.bin") && Contains("data.valid_fraction") && Contains("Megatron"));
  options.train = {kFixture + "narrow"};
  options.valid_fraction = 1e-9;
  CHECK_THROWS_WITH(TokenBlend::validation(options, shape),
                    Contains("0 tokens in all of the documents that"));
}
