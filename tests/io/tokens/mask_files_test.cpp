// Loss masks: files beside the tokens.

#include "io/tokens/mask_files.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "io/tokens/inspect.h"
#include "io/tokens/token_blend.h"
#include "io/tokens/verify.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using namespace trainerd::io;
using namespace trainerd::test;
using Catch::Contains;
using trainerd::base::DataError;

namespace {

constexpr std::int64_t kMaskedSeqLen = 4;

/// Two files with tokens 0, 1, 2, ... and 1000, 1001, ..., and masks that count every third and every fifth
/// token.
class MaskedData {
 public:
  MaskedData() {
    for (const auto& [name, first, every] : {std::tuple{"a", 0, 3}, std::tuple{"b", 1000, 5}}) {
      std::vector<std::uint16_t> tokens;
      std::string mask;
      for (int i = 0; i < kTokens; ++i) {
        tokens.push_back(static_cast<std::uint16_t>(first + i));
        mask += static_cast<char>(i % every == 0 ? 1 : 0);
      }
      write_file(path(name, ".bin"), raw(tokens));
      write_file(path(name, ".mask"), mask);
    }
  }
  static constexpr int kTokens = 41;

  std::string path(const std::string& name, const std::string& ending) const {
    return dir_ / (name + ending);
  }
  std::string folder() const { return dir_.path(); }
  /// Writes the dataset.json as `trainerd data prepare` does.
  void declare(const std::string& loss_mask) const {
    write_file(dir_ / "dataset.json",
               R"({"format": 1, "tokenizer": {"hash": "x", "vocab": 2000}, "loss_mask": )" + loss_mask + "}");
  }
  DataOptions options() const {
    DataOptions data;
    data.format = DataFormat::tokens;
    data.dtype = TokenType::uint16;
    data.train = {folder()};
    return data;
  }
  static TokenBlend open(const DataOptions& data) {
    return TokenBlend::training(data, {.seq_len = kMaskedSeqLen, .vocab = 2000, .seed = 3});
  }

 private:
  TempDir dir_;
};

bool counted(std::int32_t token) { return token < 1000 ? token % 3 == 0 : (token - 1000) % 5 == 0; }

}  // namespace

TEST_CASE("a position's loss weight is the mask of the token that it predicts", "[masks]") {
  const MaskedData files;
  files.declare("true");
  TokenBlend blend = MaskedData::open(files.options());
  REQUIRE(blend.samples() == (2 * MaskedData::kTokens - 1) / kMaskedSeqLen);
  std::vector<std::int32_t> tokens(kMaskedSeqLen + 1);
  std::vector<float> weights(kMaskedSeqLen);
  bool crosses = false;
  for (std::int64_t cursor = 0; cursor < 2 * blend.samples(); ++cursor) {
    blend.read(cursor, tokens);
    blend.read_loss_weights(cursor, weights);
    for (std::size_t s = 0; s < weights.size(); ++s)
      CHECK(weights[s] == (counted(tokens[s + 1]) ? 1.0f : 0.0f));
    crosses |= tokens.front() < 1000 && tokens.back() >= 1000;
  }
  CHECK(crosses);  // one sample had tokens of both files
}

TEST_CASE("masks are those that dataset.json declares, or those that are named", "[masks]") {
  const MaskedData files;
  std::vector<float> weights(kMaskedSeqLen, 0.5f);
  const auto all_count = [&](const DataOptions& data) {
    TokenBlend blend = MaskedData::open(data);
    bool all = true;
    for (std::int64_t cursor = 0; cursor < blend.samples(); ++cursor) {
      blend.read_loss_weights(cursor, weights);
      for (const float weight : weights) all &= weight == 1.0f;
    }
    return all;
  };
  CHECK_THROWS_WITH(MaskedData::open(files.options()),
                    Contains("a.mask: a loss mask lies beside the tokens, and no dataset.json says"));
  files.declare("false");
  CHECK(all_count(files.options()));
  DataOptions named = files.options();
  named.mask = {files.path("a", ".mask"), files.path("b", ".mask")};
  CHECK_FALSE(all_count(named));
  named.mask = {files.folder() + "/*.mask"};
  CHECK_FALSE(all_count(named));
  named.mask = {files.path("a", ".mask")};
  CHECK_THROWS_WITH(MaskedData::open(named), Contains("1 loss masks for 2 files of tokens"));
  named.train.clear();
  named.mask.clear();
  named.sources = {{.path = {files.path("a", ".bin")}, .weight = 1, .mask = {files.path("a", ".mask")}},
                   {.path = {files.path("b", ".bin")}, .weight = 1}};
  TokenBlend blend = MaskedData::open(named);
  std::vector<std::int32_t> tokens(kMaskedSeqLen + 1);
  for (std::int64_t cursor = 0; cursor < blend.samples(); ++cursor) {
    blend.read(cursor, tokens);
    blend.read_loss_weights(cursor, weights);
    for (std::size_t s = 0; s < weights.size(); ++s)
      CHECK(weights[s] == (tokens[s + 1] >= 1000 || counted(tokens[s + 1]) ? 1.0f : 0.0f));
  }
}

TEST_CASE("validation data has masks too", "[masks]") {
  const MaskedData files;
  DataOptions data = files.options();
  data.valid = {files.path("b", ".bin")};
  data.valid_mask = {files.path("b", ".mask")};
  TokenBlend blend = TokenBlend::validation(data, {.seq_len = kMaskedSeqLen, .vocab = 2000, .seed = 3});
  std::vector<float> weights(kMaskedSeqLen);
  blend.read_loss_weights(0, weights);
  CHECK(weights == std::vector<float>{0, 0, 0, 0});
  blend.read_loss_weights(1, weights);
  CHECK(weights == std::vector<float>{1, 0, 0, 0});
}

TEST_CASE("a mask of another size, with other bytes or missing is named", "[masks]") {
  const MaskedData files;
  files.declare("true");
  const std::string path = files.path("b", ".mask");
  const std::string good = read_file(path);
  write_file(path, good + '\1');
  CHECK_THROWS_WITH(MaskedData::open(files.options()),
                    Contains("b.mask: a loss mask has a byte for each token") && Contains("42 bytes") &&
                        Contains("41 tokens"));
  std::filesystem::remove(path);
  CHECK_THROWS_WITH(MaskedData::open(files.options()), Contains("b.mask: it is not there"));
  std::string bad = good;
  bad[17] = 7;
  write_file(path, bad);
  TokenBlend blend = MaskedData::open(files.options());
  const std::string said = "b.mask: byte 7 at position 17 is neither";
  CHECK_THROWS_WITH(blend.check_samples(1), Contains(said));
  std::vector<float> weights(kMaskedSeqLen);
  const auto read_all = [&] {
    for (std::int64_t cursor = 0; cursor < blend.samples(); ++cursor)
      blend.read_loss_weights(cursor, weights);
  };
  CHECK_THROWS_WITH(read_all(), Contains(said));
  const Verification verified = verify_data({files.folder()}, {});
  CHECK_FALSE(verified.problems.empty());
  write_file(path, good);
  files.declare("1");
  CHECK_THROWS_WITH(MaskedData::open(files.options()), Contains("\"loss_mask\" is neither true nor false"));
}

TEST_CASE("masks are part of what identifies the data", "[masks]") {
  const MaskedData files;
  const auto facts = [&] { return MaskedData::open(files.options()).check_samples(1).at(0); };
  files.declare("false");
  const SourceFacts none = facts();
  files.declare("true");
  const SourceFacts masked = facts();
  CHECK(masked.files == none.files + ", loss masks of 2");
  CHECK(masked.content != none.content);
  std::string mask = read_file(files.path("a", ".mask"));
  mask[40] = 1;
  write_file(files.path("a", ".mask"), mask);
  CHECK(facts().content != masked.content);
  CHECK(facts().files == masked.files);
}

TEST_CASE("data inspect and data verify know the masks beside token files", "[masks]") {
  const MaskedData files;
  InspectOptions options;
  options.dtype = TokenType::uint16;
  // 14 of 41 and 9 of 41 tokens count.
  const Inspection inspected = inspect_data(files.folder(), options);
  CHECK(inspected.problems.empty());
  CHECK_THAT(inspected.text, Contains("28% of tokens count"));
  CHECK_THAT(inspected.text, Contains("files           2\n"));
  const Verification verified = verify_data({files.path("a", ".bin")}, options);
  CHECK(verified.problems.empty());
  CHECK_THAT(verified.text, Contains("34.1% of tokens count"));
  CHECK_THAT(verified.text, Contains("a.mask"));
  write_file(files.path("a", ".mask.xxh128"), std::string(32, '0'));
  CHECK(verify_data({files.path("a", ".bin")}, options).problems.size() == 1);
  std::filesystem::remove(files.path("a", ".mask.xxh128"));
  write_file(files.path("a", ".mask"), std::string(MaskedData::kTokens, '\2'));
  CHECK_THAT(inspect_data(files.path("a", ".bin"), options).problems.at(0), Contains("byte 2 at position 0"));
  CHECK_THAT(verify_data({files.path("a", ".bin")}, options).problems.at(0),
             Contains("byte 2 at position 0"));
  write_file(files.path("a", ".mask"), "");
  CHECK_THAT(inspect_data(files.path("b", ".bin"), options).text, Contains("22% of tokens count"));
  CHECK_THROWS_WITH(inspect_data(files.path("a", ".bin"), options), Contains("has 0 bytes"));
}
