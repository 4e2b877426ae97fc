// The training data as a blend of sources: the order of its samples, and exactly-once within each source.

#include "io/tokens/token_blend.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using namespace trainerd::io;
using namespace trainerd::test;
using Catch::Contains;
using trainerd::base::DataError;

namespace {

constexpr std::int64_t kSeqLen = 4;
using SampleTokens = std::vector<std::int32_t>;

/// Files whose samples identify themselves: first token = 1000 x file + number of the sample.
class BlendFiles {
 public:
  std::string add(const std::string& name, std::uint16_t number, std::int64_t samples) {
    std::vector<std::uint16_t> tokens;
    for (std::int64_t i = 0; i < samples * kSeqLen + 1; ++i)
      tokens.push_back(static_cast<std::uint16_t>(1000 * number + i / kSeqLen));
    write_file(dir_ / name, raw(tokens));
    return dir_ / name;
  }
  TokenBlend open(const std::vector<DataSource>& sources, std::uint64_t seed = 7) const {
    DataOptions options;
    options.format = DataFormat::tokens;
    options.dtype = TokenType::uint16;
    options.sources = sources;
    return TokenBlend::training(options, {.seq_len = kSeqLen, .vocab = 65536, .seed = seed});
  }

 private:
  TempDir dir_;
};

/// Returns 1000 x source + number of the sample in it.
std::int32_t sample_at(TokenBlend& blend, std::int64_t cursor) {
  SampleTokens tokens(kSeqLen + 1);
  blend.read(cursor, tokens);
  return tokens[0];
}

}  // namespace

TEST_CASE("every epoch of every source of a blend has each of its samples once", "[blend]") {
  BlendFiles files;
  TokenBlend blend = files.open({{.path = {files.add("a", 1, 40)}, .weight = 5},
                                 {.path = {files.add("b", 2, 7)}, .weight = 2},
                                 {.path = {files.add("c", 3, 90)}, .weight = 3}});
  const std::map<std::int32_t, std::size_t> samples{{1, 40}, {2, 7}, {3, 90}};
  std::map<std::int32_t, std::set<std::int32_t>> epoch;
  std::map<std::int32_t, int> epochs, taken;
  for (std::int64_t cursor = 0; cursor < 1000; ++cursor) {
    const std::int32_t sample = sample_at(blend, cursor), source = sample / 1000;
    ++taken[source];
    REQUIRE(epoch[source].insert(sample).second);
    if (epoch[source].size() < samples.at(source)) continue;
    epoch[source].clear();
    ++epochs[source];
  }
  CHECK(taken == std::map<std::int32_t, int>{{1, 500}, {2, 200}, {3, 300}});
  CHECK(epochs == std::map<std::int32_t, int>{{1, 12}, {2, 28}, {3, 3}});
}

TEST_CASE("a sample of a blend depends on seed and cursor alone, not on what was read before", "[blend]") {
  BlendFiles files;
  const std::vector<DataSource> sources{{.path = {files.add("a", 1, 40)}, .weight = 5},
                                        {.path = {files.add("b", 2, 70)}, .weight = 2, .epochs = 2}};
  TokenBlend forward = files.open(sources), backward = files.open(sources), other = files.open(sources, 8);
  std::vector<std::int32_t> a, b, c;
  for (std::int64_t cursor = 0; cursor < 800; ++cursor) a.push_back(sample_at(forward, cursor));
  for (std::int64_t cursor = 799; cursor >= 0; --cursor) b.insert(b.begin(), sample_at(backward, cursor));
  for (std::int64_t cursor = 0; cursor < 800; ++cursor) c.push_back(sample_at(other, cursor));
  CHECK(a == b);
  CHECK(a != c);
}

TEST_CASE("a blend of one source is that source alone, sample by sample", "[blend]") {
  BlendFiles files;
  const std::string path = files.add("a", 1, 40);
  TokenBlend blend = files.open({{.path = {path}, .weight = 0.3}});
  DataOptions options;
  options.format = DataFormat::tokens;
  options.dtype = TokenType::uint16;
  TokenSource alone({path}, options, kSeqLen, 65536, 7, SampleOrder::shuffled);
  SampleTokens x(kSeqLen + 1), y(kSeqLen + 1);
  for (const std::int64_t stream : {0, 3}) {
    blend.start_order({.start = 12, .sources = {{stream, 0}}});
    alone.start_order(12, stream);
    for (std::int64_t cursor = 12; cursor < 200; ++cursor) {
      blend.read(cursor, x);
      alone.read(cursor, y);
      REQUIRE(x == y);
    }
  }
}

TEST_CASE("after a blend changes, each source goes on where it was: nothing is repeated or left out",
          "[blend]") {
  BlendFiles files;
  const DataSource a{.path = {files.add("a", 1, 200)}, .weight = 1},
      b{.path = {files.add("b", 2, 100)}, .weight = 2}, c{.path = {files.add("c", 3, 50)}, .weight = 3};
  std::map<std::int32_t, std::set<std::int32_t>> seen;
  std::int64_t samples = 0;
  const auto take = [&](TokenBlend blend, const DataOrder& order, std::int64_t count) {
    blend.start_order(order);
    for (std::int64_t cursor = order.start; cursor < order.start + count; ++cursor) {
      const std::int32_t sample = sample_at(blend, cursor);
      REQUIRE(seen[sample / 1000].insert(sample).second);  // each at most once, within its first epoch
      ++samples;
    }
    const std::vector<std::int64_t> taken = blend_after(order, blend.sources()).taken(count);
    DataOrder next{.start = order.start + count, .sources = order.sources};
    for (std::size_t i = 0; i < taken.size(); ++i) next.sources[i].taken += taken[i];
    return next;
  };
  DataOrder order = take(files.open({a, b}), {0, {{0, 0}, {1, 0}}}, 90);
  CHECK(order == DataOrder{90, {{0, 30}, {1, 60}}});
  // c is added in front, and a gets a larger weight.
  DataSource heavy = a;
  heavy.weight = 4;
  order = take(files.open({c, heavy, b}), {90, {{2, 0}, {0, 30}, {1, 60}}}, 90);
  CHECK(order == DataOrder{180, {{2, 30}, {0, 70}, {1, 80}}});
  order = take(files.open({a}), {180, {{0, 70}}}, 130);
  CHECK(order.sources[0].taken == 200);
  CHECK(seen[1].size() == 200);
}

TEST_CASE("epochs and tokens limit what is taken of a source over the whole run", "[blend]") {
  BlendFiles files;
  const std::string a = files.add("a", 1, 40), b = files.add("b", 2, 70);
  const TokenBlend blend = files.open({{.path = {a}, .weight = 1, .epochs = 1.5, .tokens = 1000},
                                       {.path = {b}, .weight = 1, .epochs = 3, .tokens = 41}});
  CHECK(blend.sources()[0].limit == 60);
  CHECK(blend.sources()[1].limit == 10);
  CHECK(blend_after({}, blend.sources()).length() == 70);
  CHECK(blend_after({100, {{0, 55}, {1, 30}}}, blend.sources()).length() == 5);
  CHECK(message_of<DataError>([&] { files.open({{.path = {a}, .weight = 1, .tokens = 3}}); }) != "");
}

TEST_CASE("what identifies a blend covers the files, weights and limits of all its sources", "[blend]") {
  BlendFiles files;
  const std::string a = files.add("a", 1, 40), b = files.add("b", 2, 70);
  const auto identity = [&](const std::vector<DataSource>& sources) {
    const std::vector<SourceFacts> facts = files.open(sources).check_samples(2);
    return all_files(facts) + " " + all_content(facts);
  };
  std::set<std::string> all;
  for (const auto& [first, second] :
       std::vector<std::pair<DataSource, DataSource>>{{{{a}, 1}, {{b}, 1}},
                                                      {{{a}, 1}, {{b}, 2}},
                                                      {{{a}, 1, 2}, {{b}, 1}},
                                                      {{{b}, 1}, {{a}, 1}},
                                                      {{{a}, 1}, {{b}, 1, 0, 50}}})
    all.insert(identity({first, second}));
  all.insert(identity({{{a}, 1}}));
  CHECK(all.size() == 6);
  CHECK_THROWS_WITH(identity({{{a}, 1}, {{a}, 1}}), Contains("same data"));
}
