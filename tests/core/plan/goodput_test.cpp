#include "core/plan/goodput/goodput.h"
#include "core/plan/cost/checkpoint_interval.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "core/plan/goodput/goodput_simulation.h"
#include "kernels/base/error.h"
#include "tests/full.h"

namespace trainerd::core {
namespace {

using test::runs_full;

constexpr double kMinute = 60, kHour = 3600, kDay = 24 * kHour;

double sum(const plan::GoodputShares& shares) {
  double all = 0;
  for (const auto& named : plan::kNamedGoodputParts) all += shares.*named.part;
  return all;
}

/// A job with storage as its only tier. The whole job fails every `mtbf` seconds.
plan::FailureScenario plain(double mtbf, double save, double down) {
  plan::FailureScenario s;
  s.nodes = 512;
  s.step_seconds = 1;
  s.kinds = {{"node", plan::FailureScope::node, 1 / mtbf / 512}};
  s.tiers = {{.name = "storage", .survives = plan::FailureScope::several, .save_seconds = save}};
  s.restart_seconds = down;
  return s;
}

void check_agreement(const plan::FailureScenario& s, double weeks = 26) {
  const plan::GoodputEstimate closed = plan::closed_form_goodput(s);
  const plan::SimulatedGoodput simulated = plan::simulate_goodput(s, {.weeks = weeks, .runs = 40, .seed = 7});
  CHECK(sum(closed.shares) == Approx(1).epsilon(1e-9));
  CHECK(sum(simulated.shares) == Approx(1).epsilon(1e-9));
  INFO("caveat: " << closed.caveat << "; interval " << simulated.mean_low << " to " << simulated.mean_high);
  for (const auto& named : plan::kNamedGoodputParts) {
    INFO(named.name << ": closed form " << closed.shares.*named.part << ", simulated "
                    << simulated.shares.*named.part);
    CHECK(std::abs(closed.shares.*named.part - simulated.shares.*named.part) < 0.01);
  }
}

TEST_CASE("Daly's intervals are those of his paper", "[goodput]") {
  // Daly 2006, figures 3 to 5: a save of 5 minutes.
  CHECK(plan::daly_interval_seconds(5 * kMinute, 24 * kHour) / kMinute == Approx(117).margin(0.5));
  CHECK(plan::daly_interval_seconds(5 * kMinute, 6 * kHour) / kMinute == Approx(57).margin(0.5));
  CHECK(plan::daly_interval_seconds(5 * kMinute, 15 * kMinute) / kMinute == Approx(9.1).margin(0.05));
  CHECK(plan::daly_interval_seconds(30 * kMinute, 15 * kMinute) == 15 * kMinute);
}

TEST_CASE("the closed form is Daly's cost function for one tier", "[goodput]") {
  // Daly 2006, eq. 20: wall time over useful time = M / W exp(R / M) (exp((W + C) / M) - 1).
  for (const double mtbf : {15 * kMinute, 6 * kHour, 24 * kHour})
    for (const std::int64_t every : {300, 1800, 7200}) {
      plan::FailureScenario s = plain(mtbf, 5 * kMinute, 10 * kMinute);
      s.tiers[0].every_steps = every;
      const double w = static_cast<double>(every);
      const double expected =
          w / (mtbf * std::exp(10 * kMinute / mtbf) * std::expm1((w + 5 * kMinute) / mtbf));
      CHECK(plan::closed_form_goodput(s).shares.useful == Approx(expected).epsilon(1e-9));
    }
}

TEST_CASE("the closed form is near Meta's estimate of the effective training time", "[goodput]") {
  // arXiv 2410.21680: (1 - N r (u0 + dt / 2)) / (1 + w / dt), of first order in N r.
  for (const double per_1000_node_days : {2.34, 6.50}) {
    plan::FailureScenario s = plain(1, 20, 5 * kMinute);
    s.nodes = 256;
    s.kinds[0].per_node_second = per_1000_node_days / 1000 / kDay;
    s.tiers[0].every_steps = 3600;
    const double rate = 256 * s.kinds[0].per_node_second;
    const double expected = (1 - rate * (5 * kMinute + 1800)) / (1 + 20.0 / 3600);
    CHECK(plan::closed_form_goodput(s).shares.useful == Approx(expected).margin(0.005));
  }
}

TEST_CASE("no cadence does better than the optimum by more than rounding", "[goodput]") {
  for (const double mtbf : {30 * kMinute, 3 * kHour, 30 * kHour})
    for (const double save : {2.0, 30.0, 200.0}) {
      plan::FailureScenario s = plain(mtbf, save, 60);
      const double chosen = plan::closed_form_goodput(s).shares.useful;
      double best = 0;
      for (double every = 10; every < 40000; every *= 1.02) {
        s.tiers[0].every_steps = std::llround(every);
        best = std::max(best, plan::closed_form_goodput(s).shares.useful);
      }
      CHECK(chosen > best - 0.001);
      CHECK(chosen <= best + 0.0005);
    }
}

TEST_CASE("the closed form and the simulation agree over one tier", "[goodput]") {
  int at = 0;
  for (const double mtbf : {30 * kMinute, 3 * kHour, 2 * kDay})
    for (const double save : {1.0, 60.0})
      for (const double down : {30.0, 10 * kMinute})
        for (const double write : {0.0, 200.0}) {
          if (at++ % 5 != 0 && !runs_full()) continue;
          plan::FailureScenario s = plain(mtbf, save, down);
          s.detection_seconds = down / 2;
          s.tiers[0].write_seconds = write;
          s.tiers[0].restore_seconds = 20;
          s.planned_per_second = 1 / kDay;
          s.planned_seconds = 300;
          INFO("mtbf " << mtbf << ", save " << save << ", down " << down << ", write " << write);
          check_agreement(s);
        }
}

plan::FailureScenario three_tiers(double mtbf) {
  plan::FailureScenario s = plain(mtbf, 60, 120);
  const double each = 1 / mtbf / 512;
  s.kinds = {{"software", plan::FailureScope::process, 0.5 * each},
             {"gpu", plan::FailureScope::node, 0.35 * each},
             {"switch", plan::FailureScope::several, 0.15 * each}};
  s.tiers = {
      {.name = "memory", .survives = plan::FailureScope::process, .save_seconds = 1, .restore_seconds = 5},
      {.name = "partner",
       .survives = plan::FailureScope::node,
       .save_seconds = 4,
       .write_seconds = 20,
       .restore_seconds = 30},
      {.name = "storage",
       .survives = plan::FailureScope::several,
       .save_seconds = 30,
       .write_seconds = 100,
       .restore_seconds = 120}};
  s.detection_seconds = 60;
  return s;
}

TEST_CASE("the closed form and the simulation agree over three tiers", "[goodput]") {
  for (const double mtbf : {1 * kHour, 3 * kHour, 1 * kDay}) {
    INFO("mtbf " << mtbf);
    check_agreement(three_tiers(mtbf));
  }
}

TEST_CASE("the closed form and the simulation agree on spares", "[goodput]") {
  for (const double replace : {2 * kHour, 1 * kDay})
    for (const std::int64_t spares : {0, 2, 6, 12}) {
      plan::FailureScenario s = plain(12 * kHour, 10, 120);
      s.detection_seconds = 60;
      s.replace_seconds = replace;
      s.spares = spares;
      INFO("replaced in " << replace << ", spares " << spares);
      check_agreement(s, 52);
    }
}

TEST_CASE("the closed form and the simulation agree on an elastic job", "[goodput]") {
  for (const std::int64_t spares : {0, 1, 3})
    for (const std::int64_t nodes_per_replica : {1, 4}) {
      plan::FailureScenario s = plain(8 * kHour, 10, 120);
      s.detection_seconds = 60;
      s.replace_seconds = 1 * kDay;
      s.spares = spares;
      s.nodes = 64;
      s.kinds[0].per_node_second *= 8;
      s.speed_by_missing.clear();
      for (std::int64_t missing = 0; missing <= 16; ++missing) {
        const double replicas = 64.0 / static_cast<double>(nodes_per_replica);
        const auto gone = static_cast<double>((missing + nodes_per_replica - 1) / nodes_per_replica);
        s.speed_by_missing.push_back((replicas - gone) / replicas);
      }
      INFO("spares " << spares << ", nodes of a replica " << nodes_per_replica);
      check_agreement(s, 52);
    }
}

/// A random scenario with all features, from a few nodes to thousands.
plan::FailureScenario drawn(std::mt19937_64& bits) {
  const auto between = [&](double low, double high) {
    return low * std::pow(high / low, static_cast<double>(bits() >> 11) * 0x1p-53);
  };
  plan::FailureScenario s;
  s.nodes = static_cast<std::int64_t>(between(8, 4096));
  s.step_seconds = between(0.5, 30);
  const double mtbf = between(1800, 500000), software = between(0.1, 1), node = between(0.1, 1),
               several = between(0.03, 1);
  const double each = 1 / mtbf / static_cast<double>(s.nodes) / (software + node + several);
  s.kinds = {{"software", plan::FailureScope::process, software * each},
             {"gpu", plan::FailureScope::node, node * each},
             {"switch", plan::FailureScope::several, several * each}};
  const std::uint64_t tiers = bits() % 3;
  const double save = between(0.3, 10);
  if (tiers > 1)
    s.tiers.push_back({.name = "memory",
                       .survives = plan::FailureScope::process,
                       .save_seconds = save,
                       .restore_seconds = between(1, 60)});
  if (tiers > 0)
    s.tiers.push_back({.name = "partner",
                       .survives = plan::FailureScope::node,
                       .save_seconds = save * between(1, 4),
                       .write_seconds = between(1, 100),
                       .restore_seconds = between(1, 60)});
  s.tiers.push_back({.name = "storage",
                     .survives = plan::FailureScope::several,
                     .save_seconds = between(1, 100),
                     .write_seconds = between(1, 300),
                     .restore_seconds = between(10, 300)});
  s.detection_seconds = between(5, 900);
  s.restart_seconds = between(10, 600);
  s.planned_per_second = 1 / between(20000, 1e6);
  s.planned_seconds = between(10, 3000);
  if (bits() % 2 == 0) return s;
  s.replace_seconds = between(600, 100000);
  s.spares = static_cast<std::int64_t>(bits() % 6);
  const auto replicas = static_cast<double>(s.nodes);
  for (double missing = 1; bits() % 8 != 0 && missing < replicas / 2; ++missing)
    s.speed_by_missing.push_back((replicas - missing) / replicas);
  return s;
}

TEST_CASE("the closed form and the simulation agree wherever the closed form has no caveat", "[goodput]") {
  std::mt19937_64 bits(5);
  int certain = 0;
  for (int i = 0; i < (runs_full() ? 60 : 20); ++i) {
    const plan::FailureScenario s = drawn(bits);
    if (!plan::closed_form_goodput(s).caveat.empty()) continue;
    ++certain;
    INFO("scenario " << i);
    check_agreement(s, 20);
  }
  CHECK(certain > (runs_full() ? 30 : 10));
}

TEST_CASE("a job without failures or saves loses nothing", "[goodput]") {
  plan::FailureScenario s = plain(1, 10, 60);
  s.kinds.clear();
  CHECK(plan::closed_form_goodput(s).shares.useful == 1);
  CHECK(plan::simulate_goodput(s, {.weeks = 1, .runs = 2}).shares.useful == Approx(1).epsilon(1e-12));
}

TEST_CASE("the closed form reports where it is inexact in its caveat", "[goodput]") {
  CHECK(plan::closed_form_goodput(plain(3 * kHour, 10, 10 * kMinute)).caveat.empty());
  plan::FailureScenario s = three_tiers(10 * kMinute);
  s.detection_seconds = 5 * kMinute;
  const plan::GoodputEstimate closed = plan::closed_form_goodput(s);
  CHECK(closed.caveat.find("near the time that one takes to mend") != std::string::npos);
  // The caveat is justified: the closed form counts failures that are detected together one by one.
  const double simulated = plan::simulate_goodput(s, {.weeks = 26, .runs = 20}).shares.useful;
  CHECK(std::abs(closed.shares.useful - simulated) > 0.01);
}

TEST_CASE("a simulation depends only on its seed, and its interval covers longer ones", "[goodput]") {
  const plan::FailureScenario s = three_tiers(3 * kHour);
  const plan::SimulatedGoodput once = plan::simulate_goodput(s, {.weeks = 2, .runs = 50, .seed = 3});
  CHECK(plan::simulate_goodput(s, {.weeks = 2, .runs = 50, .seed = 3}).shares.useful == once.shares.useful);
  CHECK(plan::simulate_goodput(s, {.weeks = 2, .runs = 50, .seed = 4}).shares.useful != once.shares.useful);
  CHECK(once.run_low < once.mean_low);
  CHECK(once.run_high > once.mean_high);
  // If the 95% intervals are right, 88 or fewer of 100 cover the truth with probability 0.4%; 33 or fewer of
  // 40.
  const int samples = runs_full() ? 100 : 40;
  const double truth = plan::simulate_goodput(s, {.weeks = 100, .runs = 60, .seed = 1000}).shares.useful;
  int covered = 0;
  for (int seed = 0; seed < samples; ++seed) {
    const plan::SimulatedGoodput sample =
        plan::simulate_goodput(s, {.weeks = 2, .runs = 30, .seed = static_cast<std::uint64_t>(seed)});
    covered += sample.mean_low <= truth && truth <= sample.mean_high ? 1 : 0;
  }
  CHECK(covered > (runs_full() ? 88 : 33));
}

TEST_CASE("cadences are multiples of each other, and a given one constrains the others", "[goodput]") {
  plan::FailureScenario s = three_tiers(3 * kHour);
  std::vector<plan::TierPlan> plans = plan::plan_tiers(s);
  REQUIRE(plans.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(plans[i].optimum);
    if (i > 0) CHECK(plans[i].tier.every_steps % plans[i - 1].tier.every_steps == 0);
  }
  // If nodes fail more often than processes, the tier that survives node failures sets the cadence.
  plan::FailureScenario nodes = s;
  std::swap(nodes.kinds[0].per_node_second, nodes.kinds[1].per_node_second);
  nodes.kinds[1].per_node_second *= 20;
  const std::vector<plan::TierPlan> paced = plan::plan_tiers(nodes);
  CHECK(paced[0].tier.every_steps == paced[1].tier.every_steps);
  CHECK(static_cast<double>(paced[1].tier.every_steps) ==
        Approx(plan::daly_interval_seconds(4, 1 / paced[1].failures_per_second)).margin(1));
  s.tiers[2].every_steps = 1000;
  plans = plan::plan_tiers(s);
  CHECK(plans[2].tier.every_steps == 1000);
  CHECK(1000 % plans[1].tier.every_steps == 0);
  CHECK(plans[1].tier.every_steps % plans[0].tier.every_steps == 0);
  s.kinds.erase(s.kinds.begin());  // no failure can be restored from the memory tier
  CHECK(plan::plan_tiers(s).front().tier.name == "partner");
}

TEST_CASE("a scenario that contradicts itself is refused", "[goodput]") {
  plan::FailureScenario s = three_tiers(3 * kHour);
  s.tiers[0].every_steps = 7;
  s.tiers[2].every_steps = 30;
  try {
    plan::check_scenario(s);
    FAIL("accepted");
  } catch (const base::SpecError& e) {
    CHECK(std::string(e.what()) ==
          "storage: a copy takes 100.0 s to write, and the next is due after 30.0 s: save every 100 "
          "steps or more\n"
          "storage: every 30 steps is not a whole multiple of memory's 7");
  }
  CHECK_THROWS_AS(plan::simulate_goodput(three_tiers(kHour), {.weeks = 0}), base::SpecError);
  CHECK_THROWS_AS(plan::simulate_goodput(three_tiers(kHour), {.runs = 1}), base::SpecError);
  // Neither may take hours.
  plan::FailureScenario often = three_tiers(kHour);
  often.kinds.front().per_node_second = 1e9;
  CHECK_THROWS_WITH(plan::simulate_goodput(often, {}), Catch::Contains("make failures rarer"));
}

}  // namespace
}  // namespace trainerd::core
