// Training in fp16 with dynamic loss scaling: a scale that nothing overflows at changes no bit of fp32, an
// overflow updates nothing and halves the scale on every rank, and a checkpoint continues both.

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "core/train/snapshot.h"
#include "io/checkpoint/checkpoint.h"
#include "tests/core/layer_models.h"
#include "tests/core/train_support.h"
#include "tests/full.h"

using namespace trainerd;

namespace {

/// Four layers, so that pipelines split, and tokens that clip.
core::job::JobSpec scaled_job(const std::string& precision) {
  core::job::JobSpec job = test::small_job(precision);
  job.model.layers = 4;
  job.batch = {.global = 8, .micro = 1};
  job.optimizer.grad_clip = 0.7;
  return job;
}

/// Has every step computed three times.
struct Thrice final : core::train::Judge {
  bool judges(std::int64_t) const override { return true; }
  core::train::StepVerdict judge(const core::train::StepOutcome&) override {
    return ++computed % 3 == 0 ? core::train::StepVerdict::update : core::train::StepVerdict::again;
  }
  int computed = 0;
};

struct ScaledCurve {
  std::vector<double> loss, norm, scale;
  std::vector<std::vector<double>> groups;
  std::vector<std::int64_t> overflows;  ///< steps
  std::vector<std::byte> state;         ///< of the first rank
};

ScaledCurve run_scaled(const core::job::JobSpec& job, std::int64_t steps) {
  std::vector<ScaledCurve> curves(test::ranks_of(job));
  test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
    ScaledCurve& curve = curves[static_cast<std::size_t>(rank)];
    Thrice thrice;
    if (job.supervise.judges_steps()) cpu.trainer().judge_by(thrice);
    for (std::int64_t step = 1; step <= steps; ++step) {
      const std::vector<std::byte> before = test::state_of(cpu.trainer());
      const core::train::StepReport report = test::step_on(cpu.trainer(), job, step);
      CHECK_FALSE(report.skipped);
      if (report.overflow) {
        CHECK(test::state_of(cpu.trainer()) == before);
        curve.overflows.push_back(step);
      }
      curve.loss.push_back(report.loss);
      curve.norm.push_back(report.overflow ? 0 : report.grad_norm);
      curve.groups.push_back(report.group_norms);
      curve.scale.push_back(report.loss_scale.value_or(1));
    }
    curve.state = test::state_of(cpu.trainer());
    test::require_as_planned(cpu);
  });
  for (const ScaledCurve& curve : curves) {
    CHECK(curve.loss == curves[0].loss);
    CHECK(curve.norm == curves[0].norm);
    CHECK(curve.scale == curves[0].scale);
    CHECK(curve.overflows == curves[0].overflows);
  }
  return curves[0];
}

void check_close(const std::vector<double>& a, const std::vector<double>& b, double bound) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(a[i] == Approx(b[i]).epsilon(bound));
  }
}

}  // namespace

TEST_CASE("a loss scale at which nothing overflows changes no bit of a step in fp32", "[scale]") {
  // Powers of two scale fp32 exactly. So every path from the loss to the update has the scale exactly once.
  struct Variant {
    const char* name;
    std::function<void(core::job::JobSpec&)> change;
  };
  using Job = core::job::JobSpec;
  std::vector<Variant> variants;
  const auto add = [&](const char* name, std::function<void(Job&)> change) {
    variants.push_back({name, std::move(change)});
  };
  add("plain", [](Job&) {});
  add("muon, z-loss and label smoothing", [](Job& job) {
    job.optimizer.kind = core::job::OptimizerKind::muon;
    job.loss.z_loss = 1e-2, job.loss.label_smoothing = 0.1;
  });
  add("experts with a balance loss", [](Job& job) {
    job.model.experts = {.count = 4, .per_token = 2};
    job.loss.expert_balance = 0.05;
  });
  add("latent attention, sigmoid routers, groups of norms", [](Job& job) {
    test::set_layers("latent-experts", job.model);
    job.loss.expert_balance = 0.05;
    job.metrics.grad_norms.every = 1;
  });
  add("sinks and biases of experts", [](Job& job) { test::set_layers("gpt-oss", job.model); });
  add("adapters", [](Job& job) {
    job.model.lora = {.rank = 4, .alpha = 8, .targets = {"q_proj", "v_proj", "down_proj"}};
  });
  add("experts and sequences over ranks, steps computed again", [](Job& job) {
    job.model.experts = {.count = 4, .per_token = 2};
    job.loss.expert_balance = 0.05;
    job.parallel.dp = job.parallel.ep = job.parallel.cp = 2;
    job.supervise.verify_every = 1;
  });
  add("offload", [](Job& job) {
    job.parallel.dp = 2, job.parallel.zero = 3;
    job.parallel.offload_params = job.parallel.offload_grads = job.optimizer.offload = true;
  });
  add("split vocabulary, pipeline",
      [](Job& job) { job.parallel.tp = job.parallel.pp = job.parallel.dp = 2, job.parallel.zero = 2; });
  for (const Variant& variant : variants) {
    INFO(variant.name);
    core::job::JobSpec plain = scaled_job("fp32"), scaled = plain;
    variant.change(plain), variant.change(scaled);
    scaled.precision.loss_scale = {.dynamic = true, .initial = 4096, .window = 2};
    const ScaledCurve expected = run_scaled(plain, 5), found = run_scaled(scaled, 5);
    CHECK(found.loss == expected.loss);
    CHECK(found.norm == expected.norm);
    CHECK(found.groups == expected.groups);
    CHECK(found.state == expected.state);
    CHECK(found.scale == std::vector<double>{4096, 4096, 8192, 8192, 16384});
  }
}

TEST_CASE("fp16 learns as fp32 does, and better than without a scale", "[scale]") {
  const core::job::JobSpec fp32 = scaled_job("fp32"), fp16 = scaled_job("fp16");
  const ScaledCurve expected = run_scaled(fp32, 10), found = run_scaled(fp16, 10);
  CHECK(found.overflows.empty());
  check_close(found.loss, expected.loss, 2e-3);
  check_close(found.norm, expected.norm, 2e-2);
  // With 2048 tokens and a vocabulary of 8192 most gradients of logits are about 2^-24, the least number of
  // fp16, and those of weights are rounded to few bits or to zero. AdamW's first step shows their signs.
  core::job::JobSpec bare = fp16;
  bare.precision.loss_scale.dynamic = false;
  const auto stepped = [](core::job::JobSpec job) {
    job.model.layers = 2, job.model.vocab = 8192, job.model.seq_len = 256;
    core::rank::DeviceRank rank(job, test::cpu_topology(1));
    rank.trainer().initialise();
    test::step_on(rank.trainer(), job, 1);
    std::vector<double> weights;
    const core::model::ParamStore& params = rank.trainer().params();
    for (core::model::ParamId id = 0; id < params.count(); ++id) {
      const kernels::Tensor w = params.master(id);
      weights.insert(weights.end(), w.as<float>(), w.as<float>() + w.numel());
    }
    return weights;
  };
  const auto distance = [](const std::vector<double>& x, const std::vector<double>& y) {
    double squares = 0;
    for (std::size_t i = 0; i < x.size(); ++i) squares += (x[i] - y[i]) * (x[i] - y[i]);
    return std::sqrt(squares);
  };
  const std::vector<double> exact = stepped(fp32);
  const double with = distance(stepped(fp16), exact), without = distance(stepped(bare), exact);
  CAPTURE(with, without);
  CHECK(with * 3 < without);
}

TEST_CASE("an overflow updates nothing on any rank, and the scale halves until none occurs", "[scale]") {
  core::job::JobSpec job = scaled_job("fp16");
  job.optimizer.schedule.kind = core::job::LrKind::constant;
  job.optimizer.schedule.warmup = 0;
  job.precision.loss_scale.initial = 0x1p32;
  job.precision.loss_scale.window = 1000;
  const ScaledCurve one = run_scaled(job, 12);
  REQUIRE_FALSE(one.overflows.empty());
  REQUIRE(one.overflows.size() < 12);
  // They come first, each with half the scale of the one before.
  for (std::size_t i = 0; i < one.overflows.size(); ++i) {
    CHECK(one.overflows[i] == static_cast<std::int64_t>(i) + 1);
    CHECK(one.scale[i] == std::ldexp(1.0, 32 - static_cast<int>(i)));
  }
  // AdamW counts updates alone: what follows is the run that begins at that scale with these batches.
  const auto skipped = static_cast<std::int64_t>(one.overflows.size());
  core::job::JobSpec late = job;
  late.precision.loss_scale.initial = std::ldexp(1.0, 32 - static_cast<int>(skipped));
  core::rank::DeviceRank alone(late, test::cpu_topology(1));
  alone.trainer().initialise();
  for (std::int64_t step = 1; step + skipped <= 12; ++step) {
    const std::vector<std::int32_t> samples = test::skewed_samples(late, step + skipped);
    const core::train::StepReport report =
        alone.trainer().step(step, *test::batches(alone.trainer(), samples), {});
    CHECK(report.loss == one.loss[static_cast<std::size_t>(step + skipped) - 1]);
  }
  CHECK(test::state_of(alone.trainer()) == one.state);

  for (const auto& change : std::vector<std::function<void(core::job::JobSpec&)>>{
           [](core::job::JobSpec& j) { j.parallel.tp = j.parallel.dp = 2, j.parallel.zero = 3; },
           [](core::job::JobSpec& j) { j.parallel.pp = 2, j.parallel.cp = 2; }}) {
    core::job::JobSpec split = job;
    change(split);
    const ScaledCurve found = run_scaled(split, 12);
    CHECK(found.overflows == one.overflows);
    check_close(found.loss, one.loss, 5e-3);
  }
}

TEST_CASE("an overflow changes no state of any optimizer, average or bias of experts", "[scale]") {
  core::job::JobSpec job = scaled_job("fp16");
  job.optimizer.kind = core::job::OptimizerKind::muon;
  job.optimizer.average.decay = 0.9;
  test::set_layers("latent-experts", job.model);
  job.precision.loss_scale.initial = 0x1p32;
  CHECK(run_scaled(job, 2).overflows == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("a restored scale is brought into the job's range", "[scale]") {
  core::job::JobSpec job = scaled_job("fp16");
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  rank.trainer().initialise();
  const kernels::LossScaleState low{.value = 0.25f, .steps = 3, .skipped = 2};
  rank.backend().write(rank.trainer().stream(), std::as_bytes(std::span(&low, 1)),
                       rank.trainer().params().loss_scale());
  rank.trainer().publish();
  CHECK(test::step_on(rank.trainer(), job, 4).loss_scale == 1.0);
}

TEST_CASE("gradients that overflow at the least scale are an error, as is a loss that is not finite",
          "[scale]") {
  core::job::JobSpec job = scaled_job("fp16");
  job.precision.loss_scale = {.dynamic = true, .initial = 0x1p32, .least = 0x1p31};
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  rank.trainer().initialise();
  CHECK(test::step_on(rank.trainer(), job, 1).overflow);
  const core::train::StepReport second = test::step_on(rank.trainer(), job, 2);
  CHECK_FALSE(second.overflow);
  CHECK(second.skipped);
  CHECK(second.loss_scale == 0x1p31);
  CHECK(second.nonfinite.size() > 4);  // a parameter's name
}

TEST_CASE("a checkpoint continues the loss scale bit for bit, on another layout too", "[scale]") {
  core::job::JobSpec job = scaled_job("fp16");
  job.precision.loss_scale.initial = 0x1p30;
  job.precision.loss_scale.window = 3;
  const auto shards_after = [](const core::job::JobSpec& of, std::int64_t steps, auto&& shards) {
    shards.resize(test::ranks_of(of));
    std::vector<std::vector<io::TensorSlice>> slices(shards.size());
    test::on_every_rank(of, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
      for (std::int64_t step = 1; step <= steps; ++step) test::step_on(cpu.trainer(), of, step);
      const core::train::Snapshot snapshot(cpu.trainer().params());
      auto& bytes = shards[static_cast<std::size_t>(rank)];
      bytes.resize(static_cast<std::size_t>(snapshot.bytes()));
      snapshot.fill(cpu.backend(), cpu.trainer().stream(), bytes);
      slices[static_cast<std::size_t>(rank)] = snapshot.slices();
    });
    return slices;
  };
  core::job::JobSpec split = job;
  split.parallel.tp = split.parallel.dp = 2, split.parallel.zero = 2;
  for (const core::job::JobSpec& from : {job, split}) {
    std::vector<std::vector<std::byte>> bytes;
    const auto slices = shards_after(from, 10, bytes);
    std::vector<io::ShardContent> shards;
    std::size_t holders = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      shards.push_back({bytes[i], slices[i]});
      for (const io::TensorSlice& slice : slices[i]) holders += slice.name == core::model::kLossScaleState;
    }
    CHECK(holders == bytes.size());
    const ScaledCurve whole = run_scaled(from, 16);
    REQUIRE_FALSE(whole.overflows.empty());
    for (const core::job::JobSpec& to : {job, split}) {
      std::vector<std::vector<double>> losses(test::ranks_of(to)), scales = losses;
      test::on_every_rank(to, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
        io::CheckpointReader reader("memory", shards);
        core::train::Snapshot(cpu.trainer().params()).load(cpu.backend(), cpu.trainer().stream(), reader);
        cpu.trainer().publish();
        for (std::int64_t step = 11; step <= 16; ++step) {
          const core::train::StepReport report = test::step_on(cpu.trainer(), to, step);
          losses[static_cast<std::size_t>(rank)].push_back(report.loss);
          scales[static_cast<std::size_t>(rank)].push_back(report.loss_scale.value());
        }
      });
      CHECK(scales[0] == std::vector<double>(whole.scale.begin() + 10, whole.scale.end()));
      const std::vector<double> rest(whole.loss.begin() + 10, whole.loss.end());
      if (to.parallel.tp == from.parallel.tp) CHECK(losses[0] == rest);
      else check_close(losses[0], rest, 5e-3);
    }
  }
}

TEST_CASE("a job in fp16 goes on from a checkpoint in bf16 with its initial scale", "[scale]") {
  const core::job::JobSpec bf16 = scaled_job("bf16"), fp16 = scaled_job("fp16");
  core::rank::DeviceRank before(bf16, test::cpu_topology(1)), after(fp16, test::cpu_topology(1));
  before.trainer().initialise();
  test::step_on(before.trainer(), bf16, 1);
  const core::train::Snapshot snapshot(before.trainer().params());
  std::vector<std::byte> bytes(static_cast<std::size_t>(snapshot.bytes()));
  snapshot.fill(before.backend(), before.trainer().stream(), bytes);
  const std::vector<io::ShardContent> shards{{bytes, snapshot.slices()}};
  io::CheckpointReader reader("memory", shards);
  after.trainer().initialise_tables();
  core::train::Snapshot(after.trainer().params()).load(after.backend(), after.trainer().stream(), reader);
  after.trainer().publish();
  const core::train::StepReport report = test::step_on(after.trainer(), fp16, 2);
  CHECK(report.loss_scale == 65536.0);
  CHECK(report.loss == Approx(test::step_on(before.trainer(), bf16, 2).loss).epsilon(2e-3));
}
