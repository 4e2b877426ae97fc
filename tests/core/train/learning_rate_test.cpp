#include "core/train/learning_rate.h"

#include <catch2/catch.hpp>
#include <cmath>

using namespace trainerd::core;

namespace {

job::OptimizerOptions options(job::LrKind kind, std::int64_t warmup, double min_lr, std::int64_t decay = 0) {
  job::OptimizerOptions o;
  o.lr = 1.0;
  o.schedule = {kind, warmup, min_lr, decay};
  return o;
}

std::vector<double> curve(const job::OptimizerOptions& o, std::int64_t steps) {
  std::vector<double> values;
  for (std::int64_t s = 1; s <= steps; ++s) values.push_back(train::learning_rate(o, s, steps));
  return values;
}

void check_equal(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i] == Approx(expected[i]).epsilon(1e-12));
  }
}

}  // namespace

TEST_CASE("every schedule warms up linearly and reaches the peak at the end of the warm-up",
          "[learning-rate]") {
  for (const job::LrKind kind :
       {job::LrKind::constant, job::LrKind::cosine, job::LrKind::linear, job::LrKind::wsd}) {
    const auto values = curve(options(kind, 4, 0.1), 100);
    for (std::size_t s = 0; s < 4; ++s) CHECK(values[s] == Approx(0.25 * static_cast<double>(s + 1)));
  }
}

TEST_CASE("a constant schedule stays at the peak", "[learning-rate]") {
  check_equal(curve(options(job::LrKind::constant, 2, 0.0), 5), {0.5, 1, 1, 1, 1});
}

TEST_CASE("a linear schedule falls by equal parts to its least at the last step", "[learning-rate]") {
  check_equal(curve(options(job::LrKind::linear, 2, 0.2), 6), {0.5, 1, 0.8, 0.6, 0.4, 0.2});
}

TEST_CASE("a cosine schedule is half way down in the middle and at its least at the last step",
          "[learning-rate]") {
  // 0.2 + 0.4 (1 + cos(pi k / 4)) for k = 1..4
  const double r = std::sqrt(0.5);
  check_equal(curve(options(job::LrKind::cosine, 2, 0.2), 6),
              {0.5, 1, 0.2 + 0.4 * (1 + r), 0.6, 0.2 + 0.4 * (1 - r), 0.2});
}

TEST_CASE("wsd stays at the peak and falls linearly over its last steps", "[learning-rate]") {
  check_equal(curve(options(job::LrKind::wsd, 1, 0.2, 4), 8), {1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2});
  // No decay given: a tenth of all steps, at least one.
  check_equal(curve(options(job::LrKind::wsd, 1, 0.2), 4), {1, 1, 1, 0.2});
  const auto tenth = curve(options(job::LrKind::wsd, 0, 0.0), 40);
  CHECK(tenth[35] == 1.0);
  check_equal({tenth[36], tenth[37], tenth[38], tenth[39]}, {0.75, 0.5, 0.25, 0.0});
}
