// The order of sources in a blend.

#include "io/tokens/blend.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

using trainerd::io::Blend;
using trainerd::io::BlendShare;

namespace {

std::vector<BlendShare> shares_of(const std::vector<double>& weights) {
  std::vector<BlendShare> shares;
  for (const double weight : weights)
    shares.push_back({.weight = weight, .number = static_cast<std::int64_t>(shares.size())});
  return shares;
}

/// Random weights that differ by a factor of up to a million.
std::vector<double> random_weights(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> exponent(-3, 3);
  std::vector<double> weights(count);
  for (double& weight : weights) weight = std::pow(10, exponent(random));
  return weights;
}

}  // namespace

TEST_CASE("every prefix of a blend has each source's share to within two samples", "[blend]") {
  const std::size_t sources = GENERATE(1, 2, 3, 5, 17, 100);
  const unsigned seed = GENERATE(1, 2, 3);
  CAPTURE(sources, seed);
  const std::vector<double> weights = random_weights(sources, seed);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const Blend blend(shares_of(weights));
  std::vector<std::int64_t> counts(sources, 0);
  double worst = 0;
  for (std::int64_t p = 0; p < 20'000; ++p) {
    const Blend::Place place = blend.at(p);
    // The samples of a source come in order, each once.
    REQUIRE(place.sample == counts.at(place.source)++);
    for (std::size_t i = 0; i < sources; ++i)
      worst = std::max(
          worst, std::abs(static_cast<double>(counts[i]) - static_cast<double>(p + 1) * weights[i] / sum));
  }
  CHECK(worst < 2);
  CHECK(blend.taken(20'000) == counts);
  CHECK(blend.length() == Blend::kEndless);
}

TEST_CASE("a place far on is found without those before it, and agrees with the counts there", "[blend]") {
  const Blend blend(shares_of({0.7, 0.2, 0.1}));
  for (const std::int64_t far : {std::int64_t{1} << 40, (std::int64_t{1} << 50) + 12345}) {
    std::vector<std::int64_t> counts = blend.taken(far);
    CHECK(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == far);
    CHECK(std::abs(static_cast<double>(counts[1]) - 0.2 * static_cast<double>(far)) < 2);
    for (std::int64_t p = far; p < far + 100; ++p) {
      const Blend::Place place = blend.at(p);
      REQUIRE(place.sample == counts.at(place.source)++);
    }
    CHECK(blend.taken(far + 100) == counts);
  }
}

TEST_CASE(
    "the order of a blend does not depend on the order in which its sources are listed, nor on the unit",
    "[blend]") {
  const std::vector<BlendShare> shares{
      {.weight = 3, .number = 7}, {.weight = 1, .number = 4}, {.weight = 1, .number = 9}};
  const std::vector<BlendShare> other{
      {.weight = 0.25, .number = 9}, {.weight = 0.75, .number = 7}, {.weight = 0.25, .number = 4}};
  const Blend a(shares), b(other);
  const std::vector<std::size_t> place_in_other{1, 2, 0};
  for (std::int64_t p = 0; p < 1000; ++p) {
    const Blend::Place x = a.at(p), y = b.at(p);
    REQUIRE(place_in_other.at(x.source) == y.source);
    REQUIRE(x.sample == y.sample);
  }
}

TEST_CASE("a source gives its limit and no more, each sample once, and the others go on by their weights",
          "[blend]") {
  std::vector<BlendShare> shares = shares_of({0.5, 0.3, 0.2});
  shares[0].limit = 100;
  shares[1].limit = 500;
  const Blend blend(shares);
  std::vector<std::int64_t> counts(3, 0);
  for (std::int64_t p = 0; p < 5000; ++p) {
    const Blend::Place place = blend.at(p);
    REQUIRE(place.sample == counts.at(place.source)++);
    REQUIRE(blend.taken(p + 1) == counts);
    // By weight until the first source ends; then 3 to 2.
    if (p + 1 == 200) REQUIRE(std::abs(counts[0] - 100) <= 2);
    if (p + 1 == 600) REQUIRE(std::abs(counts[1] - (60 + 240)) <= 4);
  }
  CHECK(counts == std::vector<std::int64_t>{100, 500, 4400});
}

TEST_CASE("a blend whose sources all have limits ends when each has given its own", "[blend]") {
  std::vector<BlendShare> shares = shares_of(random_weights(20, 5));
  std::int64_t all = 0;
  for (std::size_t i = 0; i < shares.size(); ++i)
    all += shares[i].limit = static_cast<std::int64_t>(i * i % 37);
  const Blend blend(shares);
  REQUIRE(blend.length() == all);
  std::set<std::pair<std::size_t, std::int64_t>> seen;
  for (std::int64_t p = 0; p < all; ++p) {
    const Blend::Place place = blend.at(p);
    REQUIRE(place.sample < shares[place.source].limit);
    REQUIRE(seen.emplace(place.source, place.sample).second);
  }
  CHECK(static_cast<std::int64_t>(seen.size()) == all);
  const std::vector<std::int64_t> counts = blend.taken(all);
  for (std::size_t i = 0; i < shares.size(); ++i) CHECK(counts[i] == shares[i].limit);
  const Blend empty(std::vector<BlendShare>{{.weight = 1, .limit = 0}});
  CHECK(empty.length() == 0);
  CHECK(empty.taken(0) == std::vector<std::int64_t>{0});
}
