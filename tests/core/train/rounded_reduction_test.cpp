// Training with gradients in bf16 between data-parallel ranks (precision.reduce).

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "tests/core/train_support.h"
#include "tests/full.h"

using namespace trainerd;

namespace {

constexpr std::int64_t kRoundedSteps = 20;
/// Steps of runs that must have the same bits.
const std::int64_t kSameBitSteps = test::runs_full() ? kRoundedSteps : 8;

core::job::JobSpec reduced_job(const std::string& precision, const std::string& parallel,
                               const std::string& optimizer = "name: adamw, lr: 5.0e-3") {
  return core::spec::parse_job(
      "name: reduced\nseed: 5\ndevice: cpu\n"
      "model: {layers: 3, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 97, seq_len: 16, "
      "tie_embeddings: true}\n"
      "batch: {global: 8, micro: 1}\nprecision: " +
          precision + "\nparallel: {" + parallel + "}\noptimizer: {" + optimizer +
          ", schedule: {kind: cosine, warmup: 3, min_lr: 1.0e-4}}\nsteps: 20\ndata: {format: synthetic}\n",
      "reduced.yaml");
}

/// Losses and norms of the steps, alternating. Checks that all ranks agree and use memory as planned.
std::vector<double> reduced_curve(const core::job::JobSpec& job, std::int64_t devices_per_node = 64,
                                  test::Through through = test::Through::memory,
                                  std::int64_t steps = kSameBitSteps) {
  std::vector<std::vector<double>> curves(test::ranks_of(job));
  test::on_every_rank(
      job,
      [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
        for (std::int64_t step = 1; step <= steps; ++step) {
          const core::train::StepReport report = test::step_on(cpu.trainer(), job, step);
          curves[static_cast<std::size_t>(rank)].push_back(report.loss);
          curves[static_cast<std::size_t>(rank)].push_back(report.grad_norm);
        }
        test::require_as_planned(cpu);
      },
      devices_per_node, through);
  for (const std::vector<double>& curve : curves) CHECK(curve == curves[0]);
  return curves[0];
}

/// The largest relative difference of losses.
double losses_apart(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); i += 2) most = std::max(most, std::abs(a[i] - b[i]) / b[i]);
  return most;
}

struct ReducedLayout {
  std::string parallel;
  std::int64_t devices_per_node = 64;
};

const std::vector<ReducedLayout> kReducedLayouts{
    {"dp: 2, zero: 0"},
    {"dp: 4, zero: 1"},
    {"dp: 4, zero: 2"},
    {"dp: 8, zero: 3"},
    {"dp: 4, zero: 1, zero_group: 2"},
    {"dp: 4, zero: 3, zero_group: 2"},
    {"dp: 4, zero: 0", 2},
    {"dp: 4, zero: 3", 2},
    {"tp: 2, dp: 2, zero: 1, sequence_parallel: true"},
    {"tp: 2, pp: 2, dp: 2, zero: 2, schedule: zb-h1"},
    {"dp: 4, zero: 2, bucket_bytes: 4096"},
};

}  // namespace

TEST_CASE("gradients rounded for transfer stay as close to fp32 as computing in bf16 does, on every layout",
          "[reduction]") {
  std::size_t turn = 0;  // each of the 11 layouts runs with one of the optimizers, with both in full runs
  for (const std::string optimizer :
       {"name: adamw, lr: 5.0e-3", "name: muon, lr: 2.0e-2, adamw_lr: 5.0e-3"}) {
    const auto curve = [](const core::job::JobSpec& job, std::int64_t devices_per_node = 64) {
      return reduced_curve(job, devices_per_node, test::Through::memory, kRoundedSteps);
    };
    const std::vector<double> wide = curve(reduced_job("fp32", "dp: 1", optimizer));
    const double bf16 = losses_apart(curve(reduced_job("bf16", "dp: 1", optimizer)), wide);
    REQUIRE(wide[2 * kRoundedSteps - 2] < wide[0] - 0.3);
    CHECK(bf16 < 0.01);
    for (const ReducedLayout& layout : kReducedLayouts) {
      if (turn++ % 2 == 0 && !test::runs_full()) continue;
      const std::vector<double> rounded =
          curve(reduced_job("{reduce: bf16}", layout.parallel, optimizer), layout.devices_per_node);
      const double apart = losses_apart(rounded, wide);
      CAPTURE(optimizer, layout.parallel, layout.devices_per_node, bf16, apart);
      CHECK(rounded[0] == Approx(wide[0]).epsilon(1e-6));  // the first loss comes before any reduction
      CHECK(apart > 0);
      // Computing in bf16 rounds each gradient at least once, to the same precision. Two levels round twice.
      CHECK(apart <= 2 * bf16);
    }
  }
}

TEST_CASE("one data-parallel rank has nothing to round", "[reduction]") {
  for (const std::string parallel : {"dp: 1", "tp: 2, pp: 2", "tp: 2, sequence_parallel: true"}) {
    CAPTURE(parallel);
    CHECK(reduced_curve(reduced_job("{reduce: bf16}", parallel)) ==
          reduced_curve(reduced_job("fp32", parallel)));
  }
}

TEST_CASE("gradients held in bf16 are sent unchanged, whatever precision.reduce says", "[reduction]") {
  // With bf16 the ranks exchange the gradients and sum them; with fp32 the communicator sums.
  for (const ReducedLayout& layout : kReducedLayouts) {
    CAPTURE(layout.parallel, layout.devices_per_node);
    const auto curve = [&](const std::string& reduce) {
      return reduced_curve(
          reduced_job("{compute: bf16, grads: bf16, reduce: " + reduce + "}", layout.parallel),
          layout.devices_per_node);
    };
    CHECK(curve("bf16") == curve("fp32"));
  }
}

TEST_CASE("rounded sums do not depend on the time or method of the reduction", "[reduction]") {
  for (const ReducedLayout& layout : kReducedLayouts) {
    CAPTURE(layout.parallel, layout.devices_per_node);
    core::job::JobSpec job = reduced_job("{compute: bf16, reduce: bf16}", layout.parallel);
    const std::vector<double> background = reduced_curve(job, layout.devices_per_node);
    CHECK(reduced_curve(job, layout.devices_per_node, test::Through::staged) == background);
    job.parallel.overlap_grad_reduce = job.parallel.overlap_param_gather = false;
    CHECK(reduced_curve(job, layout.devices_per_node) == background);
  }
}

TEST_CASE("ZeRO stages have the same bits with rounded sums: 0 and 1 always, 2 and 3 with one microbatch",
          "[reduction]") {
  for (const std::string optimizer : {"name: adamw, lr: 5.0e-3", "name: muon, lr: 2.0e-2, adamw_lr: 5.0e-3"})
    for (const std::int64_t devices_per_node : {64, 2}) {
      const auto curve = [&](std::int64_t zero, std::int64_t micro) {
        core::job::JobSpec job =
            reduced_job("{reduce: bf16}", "dp: 4, zero: " + std::to_string(zero), optimizer);
        job.batch.micro = micro;
        return reduced_curve(job, devices_per_node);
      };
      CAPTURE(optimizer, devices_per_node);
      CHECK(curve(1, 1) == curve(0, 1));
      const std::vector<double> one = curve(0, 2);
      for (const std::int64_t zero : {1, 2, 3}) CHECK(curve(zero, 2) == one);
    }
}
