// Training options beyond the plain cross entropy: label smoothing, z-loss, dropout, an average of the
// weights, and gradient norms by group. All are the same on every layout.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/core/layer_models.h"
#include "tests/core/train_support.h"
#include "tests/full.h"

using namespace trainerd;

namespace {

constexpr std::int64_t kObjectiveSteps = 3;

/// Four layers, so that pipelines split; two key/value heads. A vocabulary that tp pads.
core::job::JobSpec objective_job(const std::string& model, const std::string& precision = "fp32") {
  core::job::JobSpec job = test::small_job(precision);
  job.model.layers = 4;
  job.model.seq_len = 16;
  job.model.vocab = 97;
  job.batch = {.global = 8, .micro = 1};
  job.optimizer.grad_clip = 0.7;
  core::job::ModelOptions& m = job.model;
  if (model == "gpt2") {
    m.norm = core::job::Norm::layer;
    m.positions = core::job::Positions::learned;
    m.mlp = core::job::Mlp::gelu;
    m.linear_bias = m.qkv_bias = m.tie_embeddings = true;
    m.kv_heads = 4;
  }
  if (model == "gemma") {
    m.norm_placement = core::job::NormPlacement::sandwich;
    m.norm_weight = core::job::NormWeight::less_one;
    m.mlp = core::job::Mlp::geglu;
    m.qk_norm = m.tie_embeddings = m.scale_embeddings = true;
  }
  if (model.starts_with("experts") || model == "gpt-oss") test::set_layers(model, m);
  return job;
}

struct ObjectiveCurve {
  std::vector<double> loss, z_loss, norm, weight, evaluated;
  std::vector<std::vector<double>> groups;
  bool operator==(const ObjectiveCurve&) const = default;
};

using CountsIn = std::function<bool(std::int64_t step, std::int64_t sample, std::int64_t s)>;

bool every_token(std::int64_t, std::int64_t, std::int64_t) { return true; }
bool some_tokens(std::int64_t step, std::int64_t sample, std::int64_t s) {
  return sample % 3 != 1 && (7 * sample + 3 * s + step) % 3 != 0;
}

ObjectiveCurve objective_run(const core::job::JobSpec& job, const CountsIn& counts = every_token) {
  std::vector<ObjectiveCurve> curves(test::ranks_of(job));
  test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
    ObjectiveCurve& curve = curves[static_cast<std::size_t>(rank)];
    for (std::int64_t step = 1; step <= kObjectiveSteps; ++step) {
      const auto samples = test::skewed_samples(job, step);
      core::train::SampleBatches batches(
          cpu.trainer().batch_shape(), [&](std::int64_t sample, core::train::HostSample& to) {
            const auto count = static_cast<std::ptrdiff_t>(to.tokens_S1.size());
            std::copy_n(samples.begin() + sample * count, count, to.tokens_S1.begin());
            for (std::size_t s = 0; s < to.loss_weight_S.size(); ++s)
              to.loss_weight_S[s] = counts(step, sample, static_cast<std::int64_t>(s)) ? 1.0f : 0.0f;
          });
      const core::train::StepReport report = cpu.trainer().step(step, batches, {});
      CHECK(report.z_loss.has_value() == (job.loss.z_loss > 0));
      curve.loss.push_back(report.loss);
      curve.z_loss.push_back(report.z_loss.value_or(0));
      curve.norm.push_back(report.grad_norm);
      curve.weight.push_back(report.loss_weight);
      curve.groups.push_back(report.group_norms);
      curve.evaluated.push_back(cpu.trainer().evaluate(batches).loss);
    }
    test::require_as_planned(cpu);
  });
  for (const ObjectiveCurve& curve : curves) CHECK(curve == curves[0]);
  return curves[0];
}

std::vector<parallel::ParallelOptions> objective_layouts() {
  using enum parallel::ScheduleKind;
  std::vector<parallel::ParallelOptions> all(6);
  all[0].tp = 2, all[0].pp = 2, all[0].dp = 2, all[0].zero = 1, all[0].sequence_parallel = true;
  all[0].schedule = zb_h1;
  all[1].dp = 4, all[1].zero = 3;
  all[2].pp = 2, all[2].dp = 2, all[2].zero = 2, all[2].schedule = interleaved, all[2].virtual_stages = 2;
  all[3].tp = 4, all[3].zero = 0;
  all[4].tp = 2, all[4].dp = 3, all[4].sequence_parallel = true;  // 8 samples: the last microbatch is padded
  all[5].cp = 2, all[5].tp = 2, all[5].dp = 2, all[5].sequence_parallel = true;
  if (test::runs_full()) {
    all.resize(9);
    all[6].pp = 4, all[6].dp = 2, all[6].schedule = gpipe;
    all[7].tp = 4, all[7].pp = 2, all[7].sequence_parallel = true;
    all[8].cp = 4, all[8].pp = 2;
  }
  return all;
}

void check_near(const std::vector<double>& a, const std::vector<double>& b, double bound) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= bound * std::abs(b[i]));
}

/// As in tests/core/train/loss_weights_test.cpp: the order of sums differs between layouts.
constexpr double kLayoutBound = 2e-5;

/// Runs the job on every layout and compares with one rank.
ObjectiveCurve check_layouts(const core::job::JobSpec& one, const CountsIn& counts) {
  const ObjectiveCurve expected = objective_run(one, counts);
  for (const parallel::ParallelOptions& layout : objective_layouts()) {
    CAPTURE(layout.tp, layout.cp, layout.pp, layout.dp, layout.zero, parallel::to_string(layout.schedule));
    core::job::JobSpec job = one;
    job.parallel = layout;
    const ObjectiveCurve curve = objective_run(job, counts);
    CHECK(curve.weight == expected.weight);
    check_near(curve.loss, expected.loss, kLayoutBound);
    check_near(curve.z_loss, expected.z_loss, kLayoutBound);
    check_near(curve.norm, expected.norm, kLayoutBound);
    check_near(curve.evaluated, expected.evaluated, kLayoutBound);
    REQUIRE(curve.groups.size() == expected.groups.size());
    for (std::size_t i = 0; i < curve.groups.size(); ++i)
      check_near(curve.groups[i], expected.groups[i], 10 * kLayoutBound);
  }
  return expected;
}

/// Adds `length` x (a unit vector along the gradients of `from`) to the master weights of `to`.
void move_along(core::train::Trainer& to, const std::vector<std::vector<float>>& gradients, double norm,
                double length) {
  core::model::ParamStore& params = to.params();
  for (core::model::ParamId id = 0; id < params.count(); ++id) {
    float* w = params.master(id).as<float>();
    const std::vector<float>& g = gradients[static_cast<std::size_t>(id)];
    for (std::size_t i = 0; i < g.size(); ++i)
      w[i] = static_cast<float>(static_cast<double>(w[i]) + length / norm * static_cast<double>(g[i]));
  }
  to.publish();
}

/// Biases begin at 0, where those of experts have no part in the router's gradient.
void draw_biases(core::train::Trainer& trainer) {
  core::model::ParamStore& params = trainer.params();
  for (core::model::ParamId id = 0; id < params.count(); ++id) {
    if (!params.info(id).name.ends_with(".bias")) continue;
    float* b = params.master(id).as<float>();
    for (std::int64_t i = 0; i < params.master(id).numel(); ++i)
      b[i] = 0.3f * static_cast<float>(std::sin(static_cast<double>(7 * id + 3 * i)));
  }
  trainer.publish();
}

}  // namespace

TEST_CASE("label smoothing and z-loss are the same on every layout, and evaluation omits them",
          "[objective][layouts]") {
  core::job::JobSpec job = objective_job("llama");
  job.loss = {.label_smoothing = 0.1, .z_loss = 1e-2};
  const ObjectiveCurve both = check_layouts(job, some_tokens);
  core::job::JobSpec plain = job;
  plain.loss = {};
  const ObjectiveCurve without = objective_run(plain, some_tokens);
  CHECK(both.loss[0] != without.loss[0]);
  // A z-loss alone does not change the first step's cross entropy and is linear in its factor. Weights are
  // about 0 at first: logsumexp is about log 97.
  core::job::JobSpec half = plain;
  half.loss.z_loss = 5e-3;
  const ObjectiveCurve z = objective_run(half, some_tokens);
  CHECK(z.loss[0] == without.loss[0]);
  CHECK(z.z_loss[0] == Approx(both.z_loss[0] / 2).epsilon(1e-6));
  CHECK(z.z_loss[0] == Approx(5e-3 * std::log(97.0) * std::log(97.0)).epsilon(0.02));
  CHECK(z.norm[0] != without.norm[0]);
  // Without updates an evaluation gives the plain loss.
  core::job::JobSpec still = job;
  still.optimizer.lr = still.optimizer.schedule.min_lr = 1e-30, still.optimizer.weight_decay = 0;
  CHECK(objective_run(still, some_tokens).evaluated[0] == Approx(without.loss[0]).epsilon(1e-6));
}

TEST_CASE("the gradients used in training are those of the minimised loss", "[objective]") {
  const std::string model = GENERATE("llama", "gpt2", "gemma", "experts", "experts-shared", "gpt-oss");
  CAPTURE(model);
  core::job::JobSpec job = objective_job(model);
  job.loss = {.label_smoothing = 0.1, .z_loss = 1e-2};
  if (job.model.experts.on()) {
    job.loss.expert_balance = 0.5;
    // The loss jumps where a token chooses other experts.
    job.model.experts.per_token = job.model.experts.count;
  }
  job.model.dropout = {.embedding = 0.2, .residual = 0.3};
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  const auto begin = [](core::train::Trainer& trainer) {
    trainer.initialise();
    draw_biases(trainer);
  };
  begin(rank.trainer());
  const auto total = [&](core::train::Trainer& trainer) {
    const core::train::StepReport report = test::step_on(trainer, job, 1);
    return std::pair(report.loss + *report.z_loss + report.expert_balance.value_or(0), report.grad_norm);
  };
  const double norm = total(rank.trainer()).second;
  std::vector<std::vector<float>> gradients;
  core::model::ParamStore& params = rank.trainer().params();
  for (core::model::ParamId id = 0; id < params.count(); ++id) {
    if (!params.info(id).has_grad()) {
      gradients.emplace_back();
      continue;
    }
    const kernels::Tensor g = params.grad(id);
    gradients.emplace_back(g.as<float>(), g.as<float>() + g.numel());
  }
  // The slope along the gradient is its norm. Central differences at two lengths, with Richardson
  // extrapolation to remove the error of order length^2. The rounding error left is 1e-7 of the loss over its
  // change of about 1e-2.
  const auto slope = [&](double length) {
    double ends[2] = {};
    for (const int side : {0, 1}) {
      core::rank::DeviceRank moved(job, test::cpu_topology(1));
      begin(moved.trainer());
      move_along(moved.trainer(), gradients, norm, side == 0 ? -length : length);
      ends[side] = total(moved.trainer()).first;
    }
    return (ends[1] - ends[0]) / (2 * length);
  };
  CHECK((4 * slope(2e-3) - slope(4e-3)) / 3 == Approx(norm).epsilon(1e-3));
}

TEST_CASE("dropout draws the same on every layout, and none in evaluation", "[objective][layouts]") {
  const std::string model = GENERATE("llama", "gpt2");
  CAPTURE(model);
  core::job::JobSpec job = objective_job(model);
  job.model.dropout = {.embedding = 0.1, .residual = 0.2};
  const ObjectiveCurve dropped = check_layouts(job, every_token);
  core::job::JobSpec plain = job;
  plain.model.dropout = {};
  CHECK(std::abs(dropped.loss[0] - objective_run(plain).loss[0]) > 1e-4);
  // Another step drops other elements of the same samples and weights.
  core::rank::DeviceRank rank(job, test::cpu_topology(1)), again(job, test::cpu_topology(1));
  rank.trainer().initialise();
  again.trainer().initialise();
  const auto samples = test::skewed_samples(job, 1);
  const double evaluated = rank.trainer().evaluate(*test::batches(rank.trainer(), samples)).loss;
  CHECK(evaluated == Approx(objective_run(plain).loss[0]).epsilon(1e-6));
  const double first = rank.trainer().step(1, *test::batches(rank.trainer(), samples), {}).loss,
               second = again.trainer().step(2, *test::batches(again.trainer(), samples), {}).loss;
  CHECK(std::abs(first - second) > 1e-5);
}

TEST_CASE("dropout is the same with recomputation", "[objective][recompute]") {
  const std::string model = GENERATE("llama", "gemma"), precision = GENERATE("fp32", "bf16");
  CAPTURE(model, precision);
  core::job::JobSpec job = objective_job(model, precision);
  job.model.dropout = {.embedding = 0.1, .residual = 0.2};
  for (const std::int64_t pp : {1, 2}) {
    job.parallel.pp = pp;
    if (pp == 2) job.parallel.schedule = parallel::ScheduleKind::zb_h1;
    job.recompute = {};
    const ObjectiveCurve kept = objective_run(job);
    for (const core::job::RecomputeOptions& recompute :
         {core::job::RecomputeOptions{core::job::RecomputeKind::selective, 1},
          core::job::RecomputeOptions{core::job::RecomputeKind::full, 1},
          core::job::RecomputeOptions{core::job::RecomputeKind::full, 3}}) {
      job.recompute = recompute;
      CHECK(objective_run(job) == kept);
    }
  }
}

TEST_CASE("norms by group are those of one rank, and their squares add up to the norm's",
          "[objective][layouts]") {
  const auto [model, by, count] =
      GENERATE(std::tuple("llama", io::NormGroups::kind, 5), std::tuple("gpt2", io::NormGroups::kind, 4),
               std::tuple("llama", io::NormGroups::layer, 6));
  CAPTURE(model, count);
  core::job::JobSpec job = objective_job(model);
  job.metrics.grad_norms = {.every = 2, .by = by};
  const ObjectiveCurve curve = check_layouts(job, some_tokens);
  CHECK(curve.groups[0].empty());
  CHECK(curve.groups[2].empty());
  REQUIRE(curve.groups[1].size() == static_cast<std::size_t>(count));
  double squares = 0;
  for (const double norm : curve.groups[1]) {
    CHECK(norm > 0);
    squares += norm * norm;
  }
  CHECK(std::sqrt(squares) == Approx(curve.norm[1]).epsilon(1e-12));
  job.metrics.grad_norms = {};
  const ObjectiveCurve without = objective_run(job, some_tokens);
  CHECK(without.norm == curve.norm);
  CHECK(without.loss == curve.loss);
}

TEST_CASE("an average of the weights follows them on every layout", "[objective]") {
  struct Place {
    std::string precision;
    core::job::OptimizerKind optimizer;
    std::int64_t dp, zero, every;
  };
  using enum core::job::OptimizerKind;
  const std::vector<Place> places{
      {"fp32", adamw, 1, 0, 1},
      {"bf16", adamw, 2, 1, 1},
      {"fp32", muon, 2, 3, 2},
      {"bf16", lion, 2, 2, 1},
      {"{compute: bf16, grads: bf16, master: bf16, moments: bf16}", adamw, 2, 2, 1}};
  for (const Place& place : places) {
    CAPTURE(place.precision, to_string(place.optimizer), place.dp, place.zero);
    core::job::JobSpec job = test::small_job(place.precision);
    job.optimizer.kind = place.optimizer;
    job.parallel.dp = place.dp, job.parallel.zero = place.zero;
    core::job::JobSpec plain = job;
    job.optimizer.average = {.decay = 0.9, .every = place.every};
    std::vector<std::vector<double>> losses(test::ranks_of(job)), plain_losses = losses;
    test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
      // The expected average of every part.
      std::vector<std::vector<double>> averages;
      const auto each_part = [&](const auto& act) {
        std::size_t i = 0;
        for (std::size_t v = 0; v < cpu.trainer().params().views(); ++v)
          for (const core::model::StatePart& part : cpu.trainer().params().view(v).state_parts()) {
            act(i++, part);
          }
      };
      const auto weight = [](const core::model::StatePart& part, std::int64_t i) {
        return part.master.dtype == kernels::DType::f32
                   ? static_cast<double>(part.master.as<float>()[i])
                   : static_cast<double>(kernels::to_float(part.master.as<kernels::Bf16>()[i]));
      };
      bool begins_as_weights = true;
      each_part([&](std::size_t, const core::model::StatePart& part) {
        std::vector<double>& average = averages.emplace_back();
        begins_as_weights = begins_as_weights && part.states.back().dtype == kernels::DType::f32;
        for (std::int64_t i = 0; i < part.master.numel(); ++i) {
          average.push_back(weight(part, i));
          begins_as_weights =
              begins_as_weights && static_cast<double>(part.states.back().as<float>()[i]) == average.back();
        }
      });
      CHECK(begins_as_weights);
      for (std::int64_t step = 1; step <= 4; ++step) {
        losses[static_cast<std::size_t>(rank)].push_back(test::step_on(cpu.trainer(), job, step).loss);
        double worst = 0;
        each_part([&](std::size_t n, const core::model::StatePart& part) {
          for (std::int64_t i = 0; i < part.master.numel(); ++i) {
            double& average = averages[n][static_cast<std::size_t>(i)];
            if (step % place.every == 0) average = 0.9 * average + 0.1 * weight(part, i);
            worst =
                std::max(worst, std::abs(average - static_cast<double>(part.states.back().as<float>()[i])));
          }
        });
        CHECK(worst < 4 * 2 * 0x1p-24);  // weights are below 2; one or two roundings per step
      }
      test::require_as_planned(cpu);
    });
    test::on_every_rank(plain, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
      plain_losses[static_cast<std::size_t>(rank)] = test::losses(cpu.trainer(), plain, 1, 4);
    });
    CHECK(losses == plain_losses);
  }
}

TEST_CASE("an evaluation of the average is one of a model with these weights, and changes nothing",
          "[objective]") {
  const auto [precision, dp, zero] = GENERATE(std::tuple("fp32", 1, 0), std::tuple("bf16", 2, 1),
                                              std::tuple("fp32", 2, 3), std::tuple("bf16", 1, 0));
  CAPTURE(precision, dp, zero);
  core::job::JobSpec job = test::small_job(precision);
  job.parallel.dp = dp, job.parallel.zero = zero;
  job.optimizer.average = {.decay = 0.6, .every = 1};
  job.evaluate.every = 2, job.evaluate.batches = 1;
  job.evaluate.average = true;
  using enum core::model::ParamStore::Read;
  const auto evaluated = [&](core::train::Trainer& trainer) {
    const std::vector<std::int32_t> samples = test::skewed_samples(job, 9);
    return trainer.evaluate(*test::batches(trainer, samples)).loss;
  };
  test::on_every_rank(job, [&](std::int64_t, core::rank::DeviceRank& cpu) {
    core::train::Trainer& trainer = cpu.trainer();
    for (std::int64_t step = 1; step <= 3; ++step) test::step_on(trainer, job, step);
    const double of_weights = evaluated(trainer);
    const std::vector<std::byte> state = test::state_of(trainer);
    trainer.read(averages);
    const double of_averages = evaluated(trainer);
    trainer.read(weights);
    CHECK(test::state_of(trainer) == state);
    CHECK(evaluated(trainer) == of_weights);
    CHECK(std::abs(of_averages - of_weights) > 1e-5);
    // Replaces the weights by the average.
    for (std::size_t v = 0; v < trainer.params().views(); ++v)
      for (const core::model::StatePart& part : trainer.params().view(v).state_parts())
        std::copy_n(part.states.back().as<float>(), part.master.numel(), part.master.as<float>());
    trainer.publish();
    CHECK(evaluated(trainer) == of_averages);
    test::require_as_planned(cpu);
  });
}
