// Optimizer state in bf16: the parameters are the master weights, with stochastic rounding or to nearest.

#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "tests/core/train_support.h"

using namespace trainerd;

namespace {

core::job::JobSpec narrow_job(const std::string& rounding) {
  return test::small_job("{compute: bf16, grads: bf16, master: bf16, moments: bf16, rounding: " + rounding +
                         "}");
}

std::vector<double> curve(const core::job::JobSpec& job, std::int64_t steps) {
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  rank.trainer().initialise();
  const std::vector<double> found = test::losses(rank.trainer(), job, 1, steps);
  test::require_as_planned(rank);
  return found;
}

std::vector<double> curve_of_ranks(const core::job::JobSpec& job, std::int64_t steps) {
  std::vector<std::vector<double>> curves(test::ranks_of(job));
  test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
    curves[static_cast<std::size_t>(rank)] = test::losses(cpu.trainer(), job, 1, steps);
  });
  return curves[0];
}

double mean_of_last(const std::vector<double>& losses) {
  return (losses.end()[-1] + losses.end()[-2] + losses.end()[-3]) / 3;
}

}  // namespace

TEST_CASE("a state in bf16 takes 6 bytes per parameter beside the gradients, one in fp32 takes 14",
          "[narrow]") {
  const auto persistent = [](const core::job::JobSpec& job) {
    return core::rank::DeviceRank(job, test::cpu_topology(1)).plan();
  };
  const core::rank::DryRun wide = persistent(test::small_job("{compute: bf16, grads: bf16}")),
                           narrow = persistent(narrow_job("nearest"));
  std::map<std::string, std::int64_t> wide_terms, narrow_terms;
  for (const auto& region : wide.memory.regions)
    if (region.name == "persistent") wide_terms = region.terms;
  for (const auto& region : narrow.memory.regions)
    if (region.name == "persistent") narrow_terms = region.terms;
  CHECK(narrow_terms.at("moments") * 2 == wide_terms.at("moments"));
  // The parameters are the master weights: 2 bytes in place of 2 and 4.
  CHECK(narrow_terms.at("master_weights") * 2 == wide_terms.at("master_weights"));
  CHECK(narrow.snapshot_bytes < wide.snapshot_bytes * 55 / 100);
}

TEST_CASE("with a state in bf16 a model learns, and stochastic rounding does not lose small updates",
          "[narrow]") {
  constexpr std::int64_t kSteps = 40;
  const auto with = [](core::job::JobSpec job, double lr) {
    job.optimizer.lr = lr;
    job.optimizer.schedule = {};
    job.optimizer.schedule.kind = core::job::LrKind::constant;
    job.steps = kSteps;
    return curve(job, kSteps);
  };
  const auto apart = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
    return sum / static_cast<double>(a.size());
  };
  // Updates large enough for bf16: all three kinds of state learn.
  const double wide = mean_of_last(with(test::small_job("bf16"), 5e-3)), first = std::log(96.0);
  REQUIRE(wide < first - 1);
  for (const std::string rounding : {"nearest", "stochastic"})
    CHECK(std::abs(mean_of_last(with(narrow_job(rounding), 5e-3)) - wide) < 0.1 * (first - wide));
  // Steps of 5e-5: half a unit in the last place is 6e-5 for weights of the initial 0.02, and 4e-3 for those
  // of norms.
  const std::vector<double> slow = with(test::small_job("bf16"), 5e-5);
  const double lost = apart(with(narrow_job("nearest"), 5e-5), slow),
               kept = apart(with(narrow_job("stochastic"), 5e-5), slow);
  CAPTURE(lost, kept);
  CHECK(kept < lost / 2);
}

TEST_CASE("stochastic rounding is the same whichever rank holds the state", "[narrow]") {
  // One contribution per rank, so that all ZeRO stages sum alike: only the owner of each element's update
  // differs.
  core::job::JobSpec job = narrow_job("stochastic");
  job.parallel.dp = 2;
  job.batch.micro = 2;
  job.parallel.zero = 0;
  const std::vector<double> whole = curve_of_ranks(job, 8);
  for (const std::int64_t zero : {1, 2, 3}) {
    job.parallel.zero = zero;
    CHECK(curve_of_ranks(job, 8) == whole);
  }
  core::job::JobSpec other = job;
  other.seed = 12;
  CHECK(curve_of_ranks(other, 2) != std::vector<double>(whole.begin(), whole.begin() + 2));
}

TEST_CASE("tensor-parallel ranks round their shards like one rank rounds the whole", "[narrow]") {
  // Sums differ in their last bits between layouts, so a stochastic rounding may go the other way: the curves
  // are close, not equal.
  core::job::JobSpec job = narrow_job("stochastic");
  const std::vector<double> one = curve(job, 8);
  job.parallel.tp = 2;
  const std::vector<double> two = curve_of_ranks(job, 8);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(std::abs(one[i] - two[i]) < 0.01 * one[i]);
}
