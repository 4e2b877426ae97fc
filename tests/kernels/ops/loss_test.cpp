#include <limits>

#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using Want = kernels::CeFinish::Want;

struct LossCase {
  std::int64_t tokens, columns, first_row, vocab;
};
// One column, tails, a shard of a larger vocabulary, padding at its end, a shard that is all padding, several
// chunks.
constexpr LossCase kLossCases[] = {{1, 1, 0, 1},   {5, 37, 0, 37},  {4, 32, 32, 96},
                                   {7, 40, 0, 33}, {3, 48, 96, 80}, {2, 9001, 0, 9000}};

/// The softcaps under test; 0 means none.
constexpr double kCaps[] = {0.0, 1.5, 30.0};
Values capped(Values x, double cap) {
  if (cap > 0)
    for (double& v : x) v = cap * std::tanh(v / cap);
  return x;
}

std::int64_t real_columns(const LossCase& c) {
  return std::clamp<std::int64_t>(c.vocab - c.first_row, 0, c.columns);
}

std::vector<std::int32_t> targets_of(const LossCase& c) {
  std::vector<std::int32_t> targets;
  for (std::int64_t t = 0; t < c.tokens; ++t)
    targets.push_back(static_cast<std::int32_t>((t * 29 + 3) % c.vocab));
  return targets;
}

/// weight[t] (log sum over all real columns of exp(logit) - logit of the target), for one rank's table.
double loss_of(const LossCase& c, const Values& logits, const Values& weight, std::size_t t) {
  const auto v = static_cast<std::size_t>(c.columns);
  double total = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(real_columns(c)); ++i)
    total += std::exp(logits[t * v + i]);
  return weight[t] * (std::log(total) - logits[t * v + static_cast<std::size_t>(targets_of(c)[t])]);
}

}  // namespace

TEST_CASE("cross-entropy statistics cover the held real columns", "[loss]") {
  std::size_t turn = 0;
  for (const DType dtype : kActivationDtypes)
    for (const LossCase& c : kLossCases) {
      const double cap = kCaps[turn++ % std::size(kCaps)];
      const Shape shape{c.tokens, c.columns};
      const Values logits = normal_values(shape.numel(), 1, dtype, 4.0), counted = capped(logits, cap);
      const std::vector<std::int32_t> targets = targets_of(c);
      const auto n = static_cast<std::size_t>(real_columns(c)), v = static_cast<std::size_t>(c.columns);
      if (n == 0) continue;
      Values top, total, target_logit;
      for (std::size_t t = 0; t < static_cast<std::size_t>(c.tokens); ++t) {
        const double* row = counted.data() + t * v;
        top.push_back(*std::max_element(row, row + n));
        double sums = 0;
        for (std::size_t i = 0; i < n; ++i) sums += std::exp(row[i] - top.back());
        total.push_back(sums);
        const std::int64_t local = targets[t] - c.first_row;
        target_logit.push_back(local >= 0 && local < static_cast<std::int64_t>(n) ? row[local] : 0.0);
      }
      check_operator([&](Machine& m) {
        const kernels::CeStats args{.logits_TV = m.tensor(dtype, shape, logits),
                                    .targets_T = m.ids(targets),
                                    .first_row = c.first_row,
                                    .vocab = c.vocab,
                                    .softcap = static_cast<float>(cap),
                                    .max_T = m.empty(DType::f32, {c.tokens}),
                                    .sum_exp_T = m.empty(DType::f32, {c.tokens}),
                                    .target_logit_T = m.empty(DType::f32, {c.tokens})};
        m.backend().ce_stats(m.stream(), args);
        return std::vector<Output>{{"max", args.max_T, top},
                                   {"sum_exp", args.sum_exp_T, total, c.columns},
                                   {"target_logit", args.target_logit_T, target_logit}};
      });
    }
}

TEST_CASE("a shard that holds only padding has no maximum and an empty sum", "[loss]") {
  for (const kernels::Isa isa : instruction_sets()) {
    Machine m(isa, 1);
    const kernels::CeStats args{.logits_TV = m.tensor(DType::f32, {1, 4}, {1, 2, 3, 4}),
                                .targets_T = m.ids({3}),
                                .first_row = 8,
                                .vocab = 6,
                                .max_T = m.empty(DType::f32, {1}),
                                .sum_exp_T = m.empty(DType::f32, {1}),
                                .target_logit_T = m.empty(DType::f32, {1})};
    m.backend().ce_stats(m.stream(), args);
    CHECK(Machine::read(args.max_T)[0] == -std::numeric_limits<double>::infinity());
    CHECK(Machine::read(args.sum_exp_T)[0] == 0.0);
    CHECK(Machine::read(args.target_logit_T)[0] == 0.0);
  }
}

TEST_CASE("cross-entropy loss and gradient match float64 and its finite differences", "[loss]") {
  std::size_t turn = 0;
  for (const DType dtype : kActivationDtypes)
    for (const LossCase& c : kLossCases) {
      if (c.first_row != 0) continue;  // finite differences need the whole vocabulary
      const double cap = kCaps[turn++ % std::size(kCaps)];
      const Shape shape{c.tokens, c.columns};
      const auto tokens = static_cast<std::size_t>(c.tokens), v = static_cast<std::size_t>(c.columns);
      const Values logits = normal_values(shape.numel(), 2, dtype, 2.0), counted = capped(logits, cap);
      Values weight = rounded(Values{1.0, 0.5, 2.0, 0.0, 0.1, 1.0, 3.0}, DType::f32);
      weight.resize(tokens);
      const double grad_scale = 0.125;
      Values losses, gradient(logits.size(), 0.0);
      for (std::size_t t = 0; t < tokens; ++t) {
        losses.push_back(loss_of(c, counted, weight, t));
        // Rows are independent: finite differences in one row at a time, on a copy of the row.
        const LossCase one{1, c.columns, 0, c.vocab};
        const Values row(logits.begin() + static_cast<std::ptrdiff_t>(t * v),
                         logits.begin() + static_cast<std::ptrdiff_t>((t + 1) * v));
        const auto n = static_cast<std::size_t>(real_columns(one));
        const std::size_t checked = std::min<std::size_t>(n, 100);
        Values x = row;
        double total = 0;
        const Values bent = capped(row, cap);
        for (std::size_t i = 0; i < n; ++i) total += std::exp(bent[i]);
        const auto target = static_cast<std::size_t>(targets_of(c)[t]);
        for (std::size_t i = 0; i < n; ++i)
          gradient[t * v + i] = grad_scale * weight[t] *
                                (std::exp(bent[i]) / total - (i == target ? 1.0 : 0.0)) *
                                (cap > 0 ? 1 - bent[i] * bent[i] / (cap * cap) : 1.0);
        const auto loss_at = [&](const Values& at) {
          const Values z = capped(at, cap);
          double sums = 0;
          for (std::size_t i = 0; i < n; ++i) sums += std::exp(z[i]);
          return grad_scale * weight[t] * (std::log(sums) - z[target]);
        };
        for (std::size_t i = 0; i < checked; ++i) {
          x[i] = row[i] + 1e-4;
          const double above = loss_at(x);
          x[i] = row[i] - 1e-4;
          const double below = loss_at(x);
          x[i] = row[i];
          REQUIRE(std::abs((above - below) / 2e-4 - gradient[t * v + i]) < 1e-8);
        }
      }
      check_operator([&](Machine& m) {
        const Tensor x = m.tensor(dtype, shape, logits);
        const kernels::CeStats stats{.logits_TV = x,
                                     .targets_T = m.ids(targets_of(c)),
                                     .first_row = 0,
                                     .vocab = c.vocab,
                                     .softcap = static_cast<float>(cap),
                                     .max_T = m.empty(DType::f32, {c.tokens}),
                                     .sum_exp_T = m.empty(DType::f32, {c.tokens}),
                                     .target_logit_T = m.empty(DType::f32, {c.tokens})};
        m.backend().ce_stats(m.stream(), stats);
        kernels::CeFinish finish{.logits_TV = x,
                                 .targets_T = stats.targets_T,
                                 .loss_weight_T = m.tensor(DType::f32, {c.tokens}, weight),
                                 .first_row = 0,
                                 .vocab = c.vocab,
                                 .softcap = stats.softcap,
                                 .max_T = stats.max_T,
                                 .sum_exp_T = stats.sum_exp_T,
                                 .target_logit_T = stats.target_logit_T,
                                 .grad_scale = static_cast<float>(grad_scale),
                                 .loss_T = m.empty(DType::f32, {c.tokens}),
                                 .want = Want::loss};
        if (dtype == DType::f16) {  // a loss scale is a factor of the gradient alone
          finish.loss_scale = m.tensor(DType::f32, {1}, {256.0});
          finish.grad_scale /= 256;
        }
        m.backend().ce_finish(m.stream(), finish);
        CHECK(Machine::read(x) == logits);  // without gradients the logits stay
        std::vector<Output> outputs{{"loss", finish.loss_T, losses, c.columns}};
        finish.want = Want::loss_and_gradient;
        finish.loss_T = m.empty(DType::f32, {c.tokens});
        m.backend().ce_finish(m.stream(), finish);
        outputs.push_back({"loss again", finish.loss_T, losses, c.columns});
        outputs.push_back({"dlogits", x, gradient, c.columns});
        return outputs;
      });
    }
}

TEST_CASE("statistics of two shards, joined, give the loss and gradient of the whole vocabulary", "[loss]") {
  const std::int64_t tokens = 3, vocab = 50,
                     half = 28;  // 28 + 28 columns: the second shard ends in 6 columns of padding
  const Values logits = normal_values(tokens * vocab, 3, DType::f32, 3.0);
  const std::vector<std::int32_t> targets{2, 49, 28};
  check_operator([&](Machine& m) {
    struct Shard {
      kernels::CeStats stats;
      Values max, sum, target;
    };
    std::vector<Shard> shards;
    for (const std::int64_t first : {std::int64_t{0}, half}) {
      Values held;
      for (std::int64_t t = 0; t < tokens; ++t)
        for (std::int64_t i = first; i < first + half; ++i)
          held.push_back(i < vocab ? logits[static_cast<std::size_t>(t * vocab + i)] : 1e6);
      Shard shard;
      shard.stats = {.logits_TV = m.tensor(DType::f32, {tokens, half}, held),
                     .targets_T = m.ids(targets),
                     .first_row = first,
                     .vocab = vocab,
                     .max_T = m.empty(DType::f32, {tokens}),
                     .sum_exp_T = m.empty(DType::f32, {tokens}),
                     .target_logit_T = m.empty(DType::f32, {tokens})};
      m.backend().ce_stats(m.stream(), shard.stats);
      shard.max = Machine::read(shard.stats.max_T);
      shard.sum = Machine::read(shard.stats.sum_exp_T);
      shard.target = Machine::read(shard.stats.target_logit_T);
      shards.push_back(shard);
    }
    Values top, total, target, losses, first_gradient, second_gradient;
    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
      top.push_back(std::max(shards[0].max[t], shards[1].max[t]));
      total.push_back(shards[0].sum[t] * std::exp(shards[0].max[t] - top[t]) +
                      shards[1].sum[t] * std::exp(shards[1].max[t] - top[t]));
      target.push_back(shards[0].target[t] + shards[1].target[t]);
      const double* row = logits.data() + t * static_cast<std::size_t>(vocab);
      double sums = 0;
      for (std::int64_t i = 0; i < vocab; ++i) sums += std::exp(row[i]);
      losses.push_back(std::log(sums) - row[targets[t]]);
      for (std::int64_t i = 0; i < 2 * half; ++i)
        (i < half ? first_gradient : second_gradient)
            .push_back(i < vocab ? std::exp(row[i]) / sums - (i == targets[t] ? 1.0 : 0.0) : 0.0);
    }
    std::vector<Output> outputs;
    for (std::size_t s = 0; s < 2; ++s) {
      const kernels::CeFinish finish{.logits_TV = shards[s].stats.logits_TV,
                                     .targets_T = shards[s].stats.targets_T,
                                     .loss_weight_T = m.tensor(DType::f32, {tokens}, Values(3, 1.0)),
                                     .first_row = shards[s].stats.first_row,
                                     .vocab = vocab,
                                     .max_T = m.tensor(DType::f32, {tokens}, top),
                                     .sum_exp_T = m.tensor(DType::f32, {tokens}, total),
                                     .target_logit_T = m.tensor(DType::f32, {tokens}, target),
                                     .grad_scale = 1.0f,
                                     .loss_T = m.empty(DType::f32, {tokens}),
                                     .want = Want::loss_and_gradient};
      m.backend().ce_finish(m.stream(), finish);
      outputs.push_back({"loss", finish.loss_T, losses, vocab});
      outputs.push_back({"dlogits", finish.logits_TV, s == 0 ? first_gradient : second_gradient, vocab});
    }
    return outputs;
  });
}

namespace {

/// Label smoothing and z-loss as PyTorch and PaLM define them.
struct ObjectiveCase {
  double smoothing, z_loss, cap;
};

struct ObjectiveRow {
  double loss = 0, z_loss = 0;
};

/// (1 - s) nll(target) + s / V (sum over v of nll(v)), and z lse^2, of one row of logits.
ObjectiveRow objective_of(const ObjectiveCase& c, const Values& logits, std::size_t target) {
  const Values row = capped(logits, c.cap);
  double sums = 0;
  for (const double x : row) sums += std::exp(x);
  const double lse = std::log(sums);
  ObjectiveRow out;
  for (const double x : row) out.loss += c.smoothing / static_cast<double>(row.size()) * (lse - x);
  out.loss += (1 - c.smoothing) * (lse - row[target]);
  out.z_loss = c.z_loss * lse * lse;
  return out;
}

}  // namespace

TEST_CASE("label smoothing and z-loss match float64 and its finite differences, by shards too", "[loss]") {
  // One shard, and two shards, the second of which ends in padding.
  struct Split {
    std::int64_t vocab;
    std::vector<std::int64_t> columns;
  };
  const std::int64_t tokens = 4;
  const Values weight = rounded(Values{1.0, 0.0, 0.1, 3.0}, DType::f32);
  const double grad_scale = 0.125, difference = 1e-4;
  for (const DType dtype : kActivationDtypes)
    for (const ObjectiveCase& c : {ObjectiveCase{0.1, 0, 0}, ObjectiveCase{0, 1e-2, 0},
                                   ObjectiveCase{0.25, 1e-2, 0}, ObjectiveCase{0.25, 1e-2, 4}})
      for (const Split& split : {Split{37, {37}}, Split{50, {28, 28}}, Split{4100, {4100}}}) {
        CAPTURE(c.smoothing, c.z_loss, split.vocab);
        const auto v = static_cast<std::size_t>(split.vocab);
        const Values logits = normal_values(tokens * split.vocab, 7, dtype, 3.0);
        const std::vector<std::int32_t> targets{2, 5, static_cast<std::int32_t>(split.vocab) - 1, 28};
        Values losses, z_losses, gradient(logits.size());
        for (std::size_t t = 0; t < weight.size(); ++t) {
          Values row(logits.begin() + static_cast<std::ptrdiff_t>(t * v),
                     logits.begin() + static_cast<std::ptrdiff_t>((t + 1) * v));
          const auto target = static_cast<std::size_t>(targets[t]);
          const ObjectiveRow at = objective_of(c, row, target);
          losses.push_back(weight[t] * at.loss);
          z_losses.push_back(weight[t] * at.z_loss);
          double sums = 0;
          const Values bent = capped(row, c.cap);
          for (const double x : bent) sums += std::exp(x);
          for (std::size_t i = 0; i < v; ++i) {
            const double p = std::exp(bent[i]) / sums;
            gradient[t * v + i] =
                grad_scale * weight[t] * (c.cap > 0 ? 1 - bent[i] * bent[i] / (c.cap * c.cap) : 1.0) *
                (p * (1 + 2 * c.z_loss * std::log(sums)) - c.smoothing / static_cast<double>(v) -
                 (i == target ? 1 - c.smoothing : 0));
          }
          for (const std::size_t i : {std::size_t{0}, target, v - 1}) {
            const double x = row[i];
            const auto sum_at = [&](double to) {
              row[i] = to;
              const ObjectiveRow moved = objective_of(c, row, target);
              return grad_scale * weight[t] * (moved.loss + moved.z_loss);
            };
            const double slope = (sum_at(x + difference) - sum_at(x - difference)) / (2 * difference);
            row[i] = x;
            REQUIRE(std::abs(slope - gradient[t * v + i]) < 1e-7);
          }
        }
        check_operator([&](Machine& m) {
          struct Shard {
            kernels::CeStats stats;
            Values max, sum, target;
          };
          std::vector<Shard> shards;
          std::int64_t first = 0;
          for (const std::int64_t columns : split.columns) {
            Values held;
            for (std::int64_t t = 0; t < tokens; ++t)
              for (std::int64_t i = first; i < first + columns; ++i)
                held.push_back(i < split.vocab ? logits[static_cast<std::size_t>(t * split.vocab + i)] : 1e6);
            Shard& shard = shards.emplace_back();
            shard.stats = {.logits_TV = m.tensor(dtype, {tokens, columns}, held),
                           .targets_T = m.ids(targets),
                           .first_row = first,
                           .vocab = split.vocab,
                           .softcap = static_cast<float>(c.cap),
                           .label_smoothing = static_cast<float>(c.smoothing),
                           .max_T = m.empty(DType::f32, {tokens}),
                           .sum_exp_T = m.empty(DType::f32, {tokens}),
                           .target_logit_T = m.empty(DType::f32, {tokens})};
            m.backend().ce_stats(m.stream(), shard.stats);
            shard.max = Machine::read(shard.stats.max_T);
            shard.sum = Machine::read(shard.stats.sum_exp_T);
            shard.target = Machine::read(shard.stats.target_logit_T);
            first += columns;
          }
          // Joined as in parallel::vocab_parallel_head_loss.
          Values top(weight.size(), -std::numeric_limits<double>::infinity()), total(weight.size(), 0.0),
              target(weight.size(), 0.0);
          for (std::size_t t = 0; t < weight.size(); ++t) {
            for (const Shard& shard : shards) top[t] = std::max(top[t], shard.max[t]);
            for (const Shard& shard : shards) {
              total[t] += shard.sum[t] * std::exp(shard.max[t] - top[t]);
              target[t] += shard.target[t];
            }
          }
          std::vector<Output> outputs;
          for (const Shard& shard : shards) {
            const std::int64_t columns = shard.stats.logits_TV.size(1);
            const double scale = dtype == DType::f16 ? 256 : 1;
            const kernels::CeFinish finish{.logits_TV = shard.stats.logits_TV,
                                           .targets_T = shard.stats.targets_T,
                                           .loss_weight_T = m.tensor(DType::f32, {tokens}, weight),
                                           .first_row = shard.stats.first_row,
                                           .vocab = split.vocab,
                                           .softcap = static_cast<float>(c.cap),
                                           .max_T = m.tensor(DType::f32, {tokens}, top),
                                           .sum_exp_T = m.tensor(DType::f32, {tokens}, total),
                                           .target_logit_T = m.tensor(DType::f32, {tokens}, target),
                                           .grad_scale = static_cast<float>(grad_scale / scale),
                                           .loss_scale = m.tensor(DType::f32, {1}, {scale}),
                                           .label_smoothing = static_cast<float>(c.smoothing),
                                           .z_loss = static_cast<float>(c.z_loss),
                                           .loss_T = m.empty(DType::f32, {tokens}),
                                           .z_loss_T = m.empty(DType::f32, {tokens}),
                                           .want = Want::loss_and_gradient};
            m.backend().ce_finish(m.stream(), finish);
            Values held;
            for (std::int64_t t = 0; t < tokens; ++t)
              for (std::int64_t i = finish.first_row; i < finish.first_row + columns; ++i)
                held.push_back(i < split.vocab ? gradient[static_cast<std::size_t>(t * split.vocab + i)]
                                               : 0.0);
            outputs.push_back({"loss", finish.loss_T, losses, split.vocab});
            if (c.z_loss > 0) outputs.push_back({"z-loss", finish.z_loss_T, z_losses, split.vocab});
            outputs.push_back({"dlogits", finish.logits_TV, held, split.vocab});
          }
          return outputs;
        });
      }
}

TEST_CASE("a logit that is not finite makes the loss not finite", "[loss]") {
  for (const kernels::Isa isa : instruction_sets())
    for (const double bad :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
      for (const std::size_t place : {std::size_t{0}, std::size_t{20}, std::size_t{34}}) {
        Machine m(isa, 1);
        Values logits = normal_values(35, 5, DType::f32);
        logits[place] = bad;
        const kernels::CeStats stats{.logits_TV = m.tensor(DType::f32, {1, 35}, logits),
                                     .targets_T = m.ids({3}),
                                     .first_row = 0,
                                     .vocab = 35,
                                     .max_T = m.empty(DType::f32, {1}),
                                     .sum_exp_T = m.empty(DType::f32, {1}),
                                     .target_logit_T = m.empty(DType::f32, {1})};
        m.backend().ce_stats(m.stream(), stats);
        const kernels::CeFinish finish{.logits_TV = stats.logits_TV,
                                       .targets_T = stats.targets_T,
                                       .loss_weight_T = m.tensor(DType::f32, {1}, {1.0}),
                                       .first_row = 0,
                                       .vocab = 35,
                                       .max_T = stats.max_T,
                                       .sum_exp_T = stats.sum_exp_T,
                                       .target_logit_T = stats.target_logit_T,
                                       .grad_scale = 1.0f,
                                       .loss_T = m.empty(DType::f32, {1}),
                                       .want = Want::loss};
        m.backend().ce_finish(m.stream(), finish);
        CHECK_FALSE(std::isfinite(Machine::read(finish.loss_T)[0]));
      }
}

TEST_CASE("the exponential is accurate to two units in the last place over its range", "[loss]") {
  // With a maximum of 0, a sum of 1 and the target elsewhere, the gradient is the exponential itself.
  Values x;
  for (double v = -87.3; v < 88.7; v += 0.00731) x.push_back(v);
  x = rounded(x, DType::f32);
  const std::size_t finite = x.size();
  x.insert(x.end(), {-std::numeric_limits<double>::infinity(), -200.0, 89.5, -103.0});
  const auto n = static_cast<std::int64_t>(x.size());
  for (const kernels::Isa isa : instruction_sets()) {
    Machine m(isa, 1);
    const kernels::CeFinish finish{.logits_TV = m.tensor(DType::f32, {1, n}, x),
                                   .targets_T = m.ids({static_cast<std::int32_t>(n)}),
                                   .loss_weight_T = m.tensor(DType::f32, {1}, {1.0}),
                                   .first_row = 0,
                                   .vocab = n,
                                   .max_T = m.tensor(DType::f32, {1}, {0.0}),
                                   .sum_exp_T = m.tensor(DType::f32, {1}, {1.0}),
                                   .target_logit_T = m.tensor(DType::f32, {1}, {0.0}),
                                   .grad_scale = 1.0f,
                                   .loss_T = m.empty(DType::f32, {1}),
                                   .want = Want::loss_and_gradient};
    m.backend().ce_finish(m.stream(), finish);
    const Values actual = Machine::read(finish.logits_TV);
    double worst = 0;
    for (std::size_t i = 0; i < finite; ++i) {
      const double expected = std::exp(x[i]);
      const auto below = std::nextafter(static_cast<float>(expected), 0.0f);
      const double unit = static_cast<double>(static_cast<float>(expected)) - static_cast<double>(below);
      worst = std::max(worst, std::abs(actual[i] - expected) / unit);
    }
    INFO("on " << kernels::to_string(isa));
    CHECK(worst <= 2.0);
    CHECK(actual[finite] == 0.0);
    CHECK(actual[finite + 1] == 0.0);
    CHECK(actual[finite + 2] == std::numeric_limits<double>::infinity());
    CHECK(actual[finite + 3] == static_cast<double>(static_cast<float>(std::exp(-103.0))));
  }
}

}  // namespace trainerd::test
