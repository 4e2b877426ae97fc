// Losses of preference pairs and their gradient weights against float64 and its finite differences.

#include <cmath>

#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

struct PairCase {
  std::int64_t pairs, tokens;
  double beta, smoothing;
};

/// -(1 - s) log sigmoid(x) - s log sigmoid(-x), with logarithms of sums.
double pair_loss(const PairCase& c, double chosen, double rejected, const double* reference) {
  const double x = c.beta * ((chosen - reference[0]) - (rejected - reference[1]));
  return (1 - c.smoothing) * std::log1p(std::exp(-x)) + c.smoothing * std::log1p(std::exp(x));
}

}  // namespace

TEST_CASE("losses of pairs match float64 and its finite differences", "[loss][preference]") {
  // One token per answer, more tokens than a block has threads, and a padding pair at the end.
  for (const PairCase& c :
       {PairCase{1, 2, 0.125, 0}, PairCase{3, 37, 0.5, 0}, PairCase{2, 700, 0.125, 0.25}}) {
    CAPTURE(c.pairs, c.tokens, c.beta, c.smoothing);
    const std::int64_t padding = 1, all = (c.pairs + padding) * c.tokens;
    Values weight(static_cast<std::size_t>(all), 0.0), loss(weight.size(), 0.0), reference;
    const Values drawn = normal_values(all, 3, DType::f32, 0.05, 0.1);
    Values logps, weights(weight.size(), 0.0), rewards(3, 0.0);
    double total = 0;
    for (std::int64_t p = 0; p < c.pairs; ++p) {
      double sums[2] = {0, 0};
      // A prompt before each answer, an eighth of the pair, except in the shortest case.
      for (std::int64_t t = 0; t < c.tokens; ++t) {
        const bool rejected = 2 * t >= c.tokens;
        const std::int64_t in_answer = rejected ? t - (c.tokens + 1) / 2 : t;
        if (c.tokens > 8 && 4 * in_answer < c.tokens / 2) continue;
        const auto at = static_cast<std::size_t>(p * c.tokens + t);
        const double nll = std::abs(drawn[at]);
        weight[at] = rejected ? -1 : 1;
        loss[at] = weight[at] * nll;
        sums[rejected ? 1 : 0] -= nll;
      }
      const double shift = 0.3 * static_cast<double>(p) - 0.2;
      reference.insert(reference.end(), {sums[0] + shift, sums[1] - 2 * shift});
      const double* r = reference.data() + 2 * p;
      logps.insert(logps.end(), {sums[0], sums[1]});
      const double x = c.beta * ((sums[0] - r[0]) - (sums[1] - r[1]));
      total += pair_loss(c, sums[0], sums[1], r);
      rewards[0] += x;
      rewards[1] += x > 0 ? 1 : 0;
      rewards[2] += c.beta * (sums[0] - r[0]);
      // The weight of a token's -log p is the slope of the loss with respect to -log p of its answer (chosen
      // or rejected).
      const double difference = 1e-5;
      const double slopes[2] = {
          (pair_loss(c, sums[0] - difference, sums[1], r) - pair_loss(c, sums[0] + difference, sums[1], r)) /
              (2 * difference),
          (pair_loss(c, sums[0], sums[1] - difference, r) - pair_loss(c, sums[0], sums[1] + difference, r)) /
              (2 * difference)};
      REQUIRE(slopes[0] > 0);
      REQUIRE(slopes[1] < 0);
      for (std::int64_t t = 0; t < c.tokens; ++t) {
        const auto at = static_cast<std::size_t>(p * c.tokens + t);
        if (weight[at] != 0) weights[at] = slopes[weight[at] > 0 ? 0 : 1];
      }
    }
    for (std::int64_t p = 0; p < padding; ++p) {
      reference.insert(reference.end(), {0, 0});
      logps.insert(logps.end(), {0, 0});
    }
    check_operator([&](Machine& m) {
      // Initial values of the sums, as from earlier microbatches.
      const kernels::PreferenceLoss args{
          .loss_T = m.tensor(DType::f32, {all}, loss),
          .loss_weight_T = m.tensor(DType::f32, {all}, weight),
          .reference_P2 = m.tensor(DType::f64, {c.pairs + padding, 2}, reference),
          .beta = static_cast<float>(c.beta),
          .label_smoothing = static_cast<float>(c.smoothing),
          .weight_T = m.empty(DType::f32, {all}),
          .logps_P2 = m.empty(DType::f64, {c.pairs + padding, 2}),
          .loss = m.tensor(DType::f64, {1}, {2.5}),
          .rewards = m.tensor(DType::f64, {3}, {1, 2, 3})};
      m.backend().preference_loss(m.stream(), args);
      return std::vector<Output>{
          {"weights", args.weight_T, weights, c.tokens},
          {"log-probabilities", args.logps_P2, logps, c.tokens},
          {"loss", args.loss, {2.5 + total}, c.tokens},
          {"rewards", args.rewards, {1 + rewards[0], 2 + rewards[1], 3 + rewards[2]}, c.tokens}};
    });
    // A rank that adds nothing to the sums, and a pass without gradients.
    for (const kernels::Isa isa : instruction_sets()) {
      Machine m(isa, 1);
      const kernels::PreferenceLoss args{
          .loss_T = m.tensor(DType::f32, {all}, loss),
          .loss_weight_T = m.tensor(DType::f32, {all}, weight),
          .reference_P2 = m.tensor(DType::f64, {c.pairs + padding, 2}, reference),
          .beta = static_cast<float>(c.beta),
          .logps_P2 = m.empty(DType::f64, {c.pairs + padding, 2})};
      m.backend().preference_loss(m.stream(), args);
      CHECK(Machine::read(args.logps_P2)[0] == Approx(logps[0]));
    }
  }
}

}  // namespace trainerd::test
