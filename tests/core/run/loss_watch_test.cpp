#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "core/run/agent/loss_watch.h"

namespace trainerd::core::run {
namespace {

/// A curve that falls from 10 to 2 with noise of 3%.
class Curve {
 public:
  double loss(std::int64_t step) {
    return (2 + 8 * std::exp(-static_cast<double>(step) / 500)) * (1 + 0.03 * noise_(random_));
  }

 private:
  std::mt19937_64 random_{5};
  std::normal_distribution<double> noise_;
};

TEST_CASE("losses of a clean run are normal, spikes are not", "[loss-watch]") {
  Curve curve;
  LossWatch watch;
  for (std::int64_t step = 1; step <= 100'000; ++step) {
    REQUIRE(watch.add(step, curve.loss(step)));
    if (step % 10'000 == 0) REQUIRE_FALSE(watch.add(step, curve.loss(step) * 1.5));
  }
  CHECK_FALSE(watch.add(100'001, std::numeric_limits<double>::quiet_NaN()));
  CHECK(watch.add(100'002, 0.5));  // a lower loss is no spike
}

TEST_CASE("a loss that is not finite is compared with nothing that follows", "[loss-watch]") {
  LossWatch watch;
  REQUIRE_FALSE(watch.add(1, std::numeric_limits<double>::quiet_NaN()));
  std::int64_t step = 1;
  for (int i = 0; i < 40; ++i) REQUIRE(watch.add(++step, 2 + 0.01 * (i % 3)));
  CHECK_FALSE(watch.add(++step, 20));
}

TEST_CASE("a loss that stays high is out of line for a window, then the new level", "[loss-watch]") {
  LossWatch watch;
  std::int64_t step = 0;
  for (int i = 0; i < 200; ++i) REQUIRE(watch.add(++step, 2 + 0.01 * (i % 3)));
  for (std::size_t i = 0; i < LossWatch::kWindow; ++i) REQUIRE_FALSE(watch.add(++step, 5));
  for (int i = 0; i < 50; ++i) REQUIRE(watch.add(++step, 5 + 0.01 * (i % 3)));
}

TEST_CASE("a checkpoint is good once the losses after it stayed normal", "[loss-watch]") {
  using Verdicts = std::vector<std::pair<std::int64_t, bool>>;
  GoodTags tags(10);
  const auto train = [&](std::int64_t from, std::int64_t to, double loss = 2) {
    Verdicts verdicts;
    for (std::int64_t step = from; step <= to; ++step)
      if (const auto verdict = tags.on_step(step, loss)) verdicts.emplace_back(verdict->step, verdict->good);
    return verdicts;
  };
  CHECK(train(1, 51).empty());
  CHECK(tags.add(50));  // the checkpoint of step 50 is complete one step later
  CHECK(train(52, 58).empty());
  CHECK_FALSE(tags.add(58));  // one at a time
  CHECK(train(59, 60) == Verdicts{{50, true}});
  CHECK(tags.add(60));
  CHECK(train(61, 61, 9) == Verdicts{{60, false}});  // a spike
  CHECK(train(62, 90).empty());
  CHECK(tags.add(90));
  CHECK(train(91, 95).empty());
  CHECK_FALSE(tags.drop_after(90));
  CHECK(tags.drop_after(80));  // a restart: 90 is saved again
  CHECK(train(81, 95).empty());
  CHECK(tags.add(90));
  CHECK(train(96, 100) == Verdicts{{90, true}});
  // A spike came before this checkpoint was complete.
  CHECK(train(101, 110).empty());
  CHECK(train(111, 111, 9).empty());
  CHECK_FALSE(tags.add(110));
}

}  // namespace
}  // namespace trainerd::core::run
