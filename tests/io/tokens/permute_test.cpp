#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "io/tokens/token_source.h"

using trainerd::io::permute_index;

TEST_CASE("permute_index is a bijection for every small size and key") {
  for (std::uint64_t n = 1; n <= 300; ++n)
    for (const std::uint64_t key : {0ull, 1ull, 0xfeedfacecafebeefull}) {
      std::vector<int> hits(n);
      for (std::uint64_t p = 0; p < n; ++p) {
        const std::uint64_t at = permute_index(p, n, key);
        REQUIRE(at < n);
        ++hits[at];
      }
      REQUIRE(hits == std::vector<int>(n, 1));
    }
}

TEST_CASE("permute_index is a bijection around powers of two") {
  for (const std::uint64_t n : {65535ull, 65536ull, 65537ull, 100003ull}) {
    std::vector<bool> hit(n);
    for (std::uint64_t p = 0; p < n; ++p) hit[permute_index(p, n, 42)] = true;
    CHECK(std::find(hit.begin(), hit.end(), false) == hit.end());
  }
}

TEST_CASE("permute_index stays in range and distinct for sizes that cannot be listed") {
  for (const std::uint64_t n : {(1ull << 31) + 7, (1ull << 62) + 1, ~0ull}) {
    std::set<std::uint64_t> seen;
    for (std::uint64_t p = 0; p < 5000; ++p) seen.insert(permute_index(p * (n / 5000), n, 9));
    CHECK(seen.size() == 5000);
    CHECK(*seen.rbegin() < n);
  }
}

TEST_CASE("different keys give unrelated orders") {
  // Two random permutations of n agree at one place on average, with variance one (the matching problem).
  constexpr std::uint64_t n = 10000;
  int agree = 0, fixed = 0;
  for (std::uint64_t p = 0; p < n; ++p) {
    agree += permute_index(p, n, 1) == permute_index(p, n, 2);
    fixed += permute_index(p, n, 1) == p;
  }
  CHECK(agree < 8);
  CHECK(fixed < 8);
}

TEST_CASE("neighbours do not stay neighbours") {
  // For random pairs |a - b| averages n / 3, with standard deviation n / sqrt(18). The mean of n - 1 pairs
  // must lie within five standard errors.
  constexpr std::uint64_t n = 10000;
  double sum = 0;
  for (std::uint64_t p = 0; p + 1 < n; ++p) {
    const double a = static_cast<double>(permute_index(p, n, 5)),
                 b = static_cast<double>(permute_index(p + 1, n, 5));
    sum += std::abs(a - b);
  }
  CHECK(sum / (n - 1) == Approx(n / 3.0).margin(5 * n / 4.243 / 100));
}
