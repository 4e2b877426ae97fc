// A global batch that grows over the first steps of a run.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "tests/core/train_support.h"
#include "tests/full.h"

namespace trainerd::test {
namespace {

using core::job::BatchSpan;
using parallel::ScheduleKind;

/// Two, three and four steps of 2, 5 and 8 sequences.
core::job::JobSpec ramp_job(const std::string& model = "", const std::string& parallel = "") {
  return core::spec::parse_job(
      "name: ramp\nseed: 5\ndevice: cpu\n"
      "model: {layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 97, seq_len: 16" +
          model +
          "}\n"
          "batch: {global: 8, micro: 1, ramp: [{global: 2, steps: 2}, {global: 5, steps: 3}]}\n"
          "optimizer: {name: adamw, lr: 5.0e-3}\nsteps: 9\ndata: {format: synthetic}\nparallel: {" +
          parallel + "}\n",
      "ramp.yaml");
}

enum class By { ramp, weights };

/// Losses and gradient norms. `weights`: all steps have the full batch, of which the sequences beyond the
/// step's have no weight.
std::vector<double> curve_of(const core::job::JobSpec& ramp, By by) {
  const core::job::JobSpec job = by == By::ramp ? ramp : ramp.with_batch(ramp.batch.global);
  std::vector<std::vector<double>> curves(ranks_of(job));
  on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
    for (std::int64_t step = 1; step <= job.steps; ++step) {
      const std::vector<std::int32_t> samples = skewed_samples(job, step);
      const std::int64_t used = ramp.batch.of_step(step);
      core::train::BatchShape shape = cpu.trainer().batch_shape();
      shape.global = job.batch.of_step(step);
      std::int64_t most = -1;
      core::train::SampleBatches batches(shape, [&](std::int64_t sample, core::train::HostSample& to) {
        most = std::max(most, sample);
        const auto count = static_cast<std::ptrdiff_t>(to.tokens_S1.size());
        std::copy_n(samples.begin() + sample * count, count, to.tokens_S1.begin());
        std::fill(to.loss_weight_S.begin(), to.loss_weight_S.end(), sample < used ? 1.0f : 0.0f);
      });
      const core::train::StepReport report = cpu.trainer().step(step, batches, {});
      CHECK(report.loss_weight == static_cast<double>(used * job.model.seq_len));
      if (by == By::ramp) CHECK(most < used);
      for (const double x : {report.loss, report.grad_norm})
        curves[static_cast<std::size_t>(rank)].push_back(x);
    }
    require_as_planned(cpu);
  });
  for (const auto& curve : curves) CHECK(curve == curves[0]);
  return curves[0];
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] / b[i] - 1));
  return largest;
}

}  // namespace

TEST_CASE("the sizes of a growing batch follow its stages", "[ramp]") {
  const core::job::BatchOptions b{.global = 8, .micro = 1, .ramp = {{2, 2}, {5, 3}, {5, 1}, {8, 2}}};
  std::vector<std::int64_t> sizes;
  for (std::int64_t step = 1; step <= 10; ++step) sizes.push_back(b.of_step(step));
  CHECK(sizes == std::vector<std::int64_t>{2, 2, 5, 5, 5, 5, 8, 8, 8, 8});
  CHECK(b.spans(0, 10) == std::vector<BatchSpan>{{2, 2}, {5, 4}, {8, 4}});
  CHECK(b.spans(1, 4) == std::vector<BatchSpan>{{2, 1}, {5, 2}});
  CHECK(b.spans(9, 12) == std::vector<BatchSpan>{{8, 3}});
  CHECK(b.spans(3, 3).empty());
  CHECK(b.sizes() == std::vector<std::int64_t>{8, 2, 5});
  for (std::int64_t from = 0; from <= 10; ++from)
    for (std::int64_t to = from; to <= 10; ++to) {
      std::int64_t sum = 0;
      for (std::int64_t step = from + 1; step <= to; ++step) sum += b.of_step(step);
      CHECK(b.sequences(from, to) == sum);
    }
  CHECK(core::job::BatchOptions{.global = 8, .micro = 1}.spans(2, 5) == std::vector<BatchSpan>{{8, 3}});
}

TEST_CASE("steps of a smaller batch are those of a full one whose further sequences have no weight",
          "[ramp]") {
  for (const std::string model : {"", ", experts: {count: 4, per_token: 2}"}) {
    CAPTURE(model);
    const core::job::JobSpec job = ramp_job(model);
    CHECK(largest_difference(curve_of(job, By::ramp), curve_of(job, By::weights)) < 2e-5);
  }
}

TEST_CASE("every layout gives one rank's losses while the batch grows", "[ramp]") {
  struct Layout {
    std::string parallel, model = {};
  };
  const std::string experts = ", experts: {count: 4, per_token: 2}";
  std::size_t turn = 0;
  for (const Layout& layout : {Layout{"dp: 2, zero: 0"},
                               {"dp: 2, zero: 1"},
                               {"dp: 2, zero: 2"},
                               {"dp: 2, zero: 3"},
                               {"tp: 2, sequence_parallel: true"},
                               {"cp: 2"},
                               {"pp: 2, dp: 2, zero: 2"},
                               {"pp: 2, schedule: gpipe"},
                               {"pp: 2, schedule: interleaved, virtual_stages: 2"},
                               {"pp: 2, schedule: zb-h1"},
                               {"pp: 4, schedule: zb-h1"},
                               {"pp: 2, schedule: zb-v, virtual_stages: 2"},
                               {"pp: 2, schedule: v-min, virtual_stages: 2"},
                               {"pp: 2, schedule: dualpipe-v, virtual_stages: 2"},
                               {"pp: 2, dp: 2, ep: 2, schedule: dualpipe-v, virtual_stages: 2", experts},
                               {"dp: 2, ep: 2, zero: 2", experts}}) {
    if (!in_slice(turn++, 3)) continue;
    CAPTURE(layout.parallel);
    const core::job::JobSpec one = ramp_job(layout.model);
    const core::job::JobSpec job = ramp_job(layout.model, layout.parallel);
    CHECK(largest_difference(curve_of(job, By::ramp), curve_of(one, By::ramp)) < 1e-4);
  }
}

}  // namespace trainerd::test
