// Generation: the logits of the next token give the evaluation's loss; sampling from logits.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "core/generate/sampling.h"
#include "core/generate/token_scorer.h"
#include "kernels/base/error.h"
#include "tests/core/layer_models.h"
#include "tests/core/train_support.h"

using namespace trainerd;
using core::generate::choose;
using core::generate::Sampling;

namespace {

/// The weights of a trainer in this process.
class TrainedWeights final : public core::hf::WeightSource {
 public:
  TrainedWeights(const core::job::JobSpec& job, core::train::Trainer& trainer) {
    model_ = job.model;
    for (core::model::ParamId id = 0; id < trainer.params().count(); ++id) {
      const core::model::ParamInfo& info = trainer.params().info(id);
      const kernels::Tensor master = trainer.params().master(id);
      const auto& sizes = info.shard.logical.sizes;
      const std::vector<std::int64_t> shape(sizes.begin(), sizes.begin() + info.shard.logical.ndim);
      tensors_.push_back({info.name, kernels::DType::f32, shape});
      auto& values = values_[info.name];
      values.resize(static_cast<std::size_t>(master.numel()));
      std::memcpy(values.data(), master.data, values.size() * sizeof(float));
    }
  }
  std::string outline() const override { return ""; }
  std::string verify() const override { return ""; }
  void read(const io::TensorSlice& box, std::span<std::byte> out) const override {
    const std::vector<float>& values = values_.at(box.name);
    REQUIRE(box.shape == box.logical_shape);  // one rank holds all rows
    if (box.dtype == kernels::DType::f32) return void(std::memcpy(out.data(), values.data(), out.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const kernels::Bf16 value = kernels::to_bf16(values[i]);
      std::memcpy(out.data() + i * sizeof(value), &value, sizeof(value));
    }
  }

 private:
  std::map<std::string, std::vector<float>> values_;
};

double loss_by_scores(core::generate::TokenScorer& scorer, const std::vector<std::int32_t>& sample) {
  double sum = 0;
  for (std::size_t i = 1; i < sample.size(); ++i) {
    const std::span<const float> logits = scorer.next(std::span(sample).first(i));
    double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit));
    sum += std::log(total) - logits[static_cast<std::size_t>(sample[i])];
  }
  return sum / static_cast<double>(sample.size() - 1);
}

}  // namespace

TEST_CASE("scores of the next token make the evaluation's loss") {
  core::job::JobSpec job = test::small_job();
  job.batch = {.global = 1, .micro = 1};
  SECTION("rotary positions, SwiGLU") {}
  SECTION("learned positions, layer norm, GELU, biases, a tied head") {
    job.model.norm = core::job::Norm::layer;
    job.model.positions = core::job::Positions::learned;
    job.model.mlp = core::job::Mlp::gelu;
    job.model.linear_bias = job.model.tie_embeddings = true;
    core::job::settle_biases(job.model);
    job.model.kv_heads = job.model.heads;
  }
  SECTION("norms of the heads, an odd vocabulary size") {
    job.model.qk_norm = true;
    job.model.vocab = 91;
  }
  SECTION("softcaps, scaled embeddings, a tied head") { test::set_layers("gemma2", job.model); }
  SECTION("sinks, rotated parts of heads") { test::set_layers("sinks", job.model); }
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  rank.trainer().initialise();
  for (std::int64_t step = 1; step <= 8; ++step) test::step_on(rank.trainer(), job, step);
  const std::vector<std::int32_t> sample = test::skewed_samples(job, 100);
  const double loss = rank.trainer().evaluate(*test::batches(rank.trainer(), sample)).loss;

  const TrainedWeights weights(job, rank.trainer());
  core::generate::TokenScorer scorer(
      weights, {.device = "cpu", .precision = "fp32", .threads = 1, .longest = job.model.seq_len});
  CHECK(loss_by_scores(scorer, sample) == Approx(loss).epsilon(2e-6));
  CHECK(scorer.next(std::span(sample).first(5)).size() == static_cast<std::size_t>(job.model.vocab));
  core::generate::TokenScorer narrow(
      weights, {.device = "cpu", .precision = "bf16", .threads = 1, .longest = job.model.seq_len});
  CHECK(loss_by_scores(narrow, sample) == Approx(loss).epsilon(1e-2));
  if (job.model.positions == core::job::Positions::learned)
    CHECK_THROWS_WITH(core::generate::TokenScorer(
                          weights, {.device = "cpu", .precision = "fp32", .threads = 1, .longest = 25}),
                      Catch::Contains("up to 25 tokens; the model takes 24"));
}

TEST_CASE("the likeliest token, or one sampled by its probability") {
  const std::vector<float> logits{0.0f, std::log(2.0f), std::log(5.0f), std::log(2.0f),
                                  -std::numeric_limits<float>::infinity()};
  CHECK(choose(logits, {}, 0) == 2);
  CHECK(choose(std::vector<float>{1, 3, 3}, {}, 0) == 1);
  const auto shares = [&](Sampling sampling) {
    std::vector<double> counts(logits.size());
    for (std::int64_t place = 0; place < 20000; ++place)
      counts[static_cast<std::size_t>(choose(logits, sampling, place))] += 1.0 / 20000;
    return counts;
  };
  const auto near = [](double x, double y) { return std::abs(x - y) < 0.015; };
  const auto all = shares({.temperature = 1});
  CHECK((near(all[0], 0.1) && near(all[1], 0.2) && near(all[2], 0.5) && near(all[3], 0.2) && all[4] == 0));
  const auto sharp = shares({.temperature = 0.5});  // squares: 1, 4, 25, 4
  CHECK((near(sharp[0], 1.0 / 34) && near(sharp[2], 25.0 / 34)));
  const auto two = shares({.temperature = 1, .top_k = 2});  // among equal scores the first wins
  CHECK((two[0] == 0 && two[3] == 0 && near(two[1], 2.0 / 7) && near(two[2], 5.0 / 7)));
  const auto most = shares({.temperature = 1, .top_p = 0.6});  // 0.5 is not enough, 0.7 is
  CHECK((most[0] == 0 && most[3] == 0 && near(most[2], 5.0 / 7)));
  CHECK(shares({.temperature = 1, .seed = 1}) == shares({.temperature = 1, .seed = 1}));
  CHECK(shares({.temperature = 1, .seed = 1}) != shares({.temperature = 1, .seed = 2}));
  const std::vector<float> broken(3, std::numeric_limits<float>::quiet_NaN());
  CHECK_THROWS_AS(choose(broken, {}, 0), std::invalid_argument);
}
