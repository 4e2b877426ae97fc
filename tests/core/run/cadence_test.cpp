#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "core/plan/cost/checkpoint_interval.h"
#include "core/run/agent/cadence.h"

namespace trainerd::core {
namespace {

using Source = io::CadenceRecord::Source;
constexpr double kHourSeconds = 3600, kDaySeconds = 24 * kHourSeconds;

TEST_CASE(
    "an automatic cadence takes the given mean time between failures, else the cluster's, else its default",
    "[cadence]") {
  run::Cadence::Options options{.given_mtbf_seconds = 6 * kHourSeconds,
                                .cluster_mtbf_seconds = 3 * kHourSeconds,
                                .first_save_seconds = 2,
                                .trained_seconds = 3 * kDaySeconds,
                                .interruptions = 7};
  io::CadenceRecord optimum = run::Cadence(options).optimum();
  CHECK(optimum.source == Source::given);
  CHECK(optimum.mtbf_seconds == 6 * kHourSeconds);
  CHECK(optimum.interval_seconds == plan::daly_interval_seconds(2, 6 * kHourSeconds));
  options.given_mtbf_seconds = 0;
  optimum = run::Cadence(options).optimum();
  CHECK(optimum.source == Source::cluster);
  CHECK(optimum.mtbf_seconds == 3 * kHourSeconds);
  options.cluster_mtbf_seconds = 0;
  optimum = run::Cadence(options).optimum();
  CHECK(optimum.source == Source::history);
  // The estimate adds one day and one interruption to the history.
  CHECK(optimum.mtbf_seconds == Approx(4 * kDaySeconds / 8));
}

TEST_CASE("an automatic cadence follows the medians of its saves, and never overtakes their writing",
          "[cadence]") {
  run::Cadence cadence({.given_mtbf_seconds = kHourSeconds, .first_save_seconds = 60});
  for (const double stall : {0.2, 0.1, 0.3, 9.0, 0.2}) cadence.add_save(stall, 4);
  CHECK(cadence.optimum().stall_seconds == 0.2);
  CHECK(cadence.optimum().interval_seconds == plan::daly_interval_seconds(0.2, kHourSeconds));
  for (int i = 0; i < 9; ++i) cadence.add_save(0.2, 300);
  CHECK(cadence.optimum().interval_seconds == 300);
}

TEST_CASE("an automatic cadence converges to Daly's in a history of failures", "[cadence]") {
  constexpr double kMtbf = 5 * kHourSeconds, kStall = 3;
  std::mt19937_64 random(11);
  std::exponential_distribution<double> until_failure(1 / kMtbf);
  std::lognormal_distribution<double> noise(0, 0.3);
  run::Cadence cadence({.first_save_seconds = 100});
  const double wanted = plan::checkpoint_interval_seconds(kStall, 20, kMtbf);
  CHECK(cadence.optimum().interval_seconds > 2 * wanted);
  for (int failure = 0; failure < 500; ++failure) {
    // Saves at the current cadence, with steps of a minute between saves.
    double left = until_failure(random);
    while (left > 0) {
      const double useful = std::min(left, cadence.optimum().interval_seconds);
      cadence.add_step(useful);
      left -= useful;
      if (left > 0) cadence.add_save(kStall * noise(random), 20 * noise(random));
    }
    cadence.add_interruption();
  }
  // One standard deviation of the mean of 500 draws is 4.5%, that of the median of nine stalls 13%. The
  // interval goes with the square root of both. Three standard deviations of both are 20%.
  CHECK(cadence.optimum().interval_seconds == Approx(wanted).epsilon(0.2));
  CHECK(cadence.optimum().mtbf_seconds == Approx(kMtbf).epsilon(0.14));
}

}  // namespace
}  // namespace trainerd::core
