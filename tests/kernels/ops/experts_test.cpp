#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "tests/kernels/gemm_cases.h"
#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::RouterScore;
using kernels::WriteMode;

/// Choices of T tokens' K experts among E.
struct Sizes {
  std::int64_t tokens, experts, copies;
};

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// The scores of each row: its softmax, or the sigmoids.
Values scores_of(const Values& logits, const Sizes& s, RouterScore score) {
  Values probs(logits.size());
  if (score == RouterScore::sigmoid) {
    std::transform(logits.begin(), logits.end(), probs.begin(),
                   [](double x) { return 1 / (1 + std::exp(-x)); });
    return probs;
  }
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    const double* x = logits.data() + t * s.experts;
    const double largest = *std::max_element(x, x + s.experts);
    double sum = 0;
    for (std::int64_t e = 0; e < s.experts; ++e) sum += std::exp(x[e] - largest);
    for (std::int64_t e = 0; e < s.experts; ++e)
      probs[index(t * s.experts + e)] = std::exp(x[e] - largest) / sum;
  }
  return probs;
}

/// Each row over its sum, which is 1 for a softmax.
void make_shares(Values& scores, const Sizes& s) {
  for (auto row = scores.begin(); row != scores.end(); row += s.experts) {
    const double sum = std::accumulate(row, row + s.experts, 0.0);
    std::for_each(row, row + s.experts, [&](double& x) { x /= sum; });
  }
}

/// The experts with the largest sums of score and bias, if there are biases; of equal ones the first.
Values choices(Values probs, const Sizes& s, const Values& biases = {}) {
  Values chosen;
  for (std::size_t i = 0; i < probs.size() && !biases.empty(); ++i) probs[i] += biases[i % biases.size()];
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    std::vector<std::int64_t> order(index(s.experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return probs[index(t * s.experts + a)] > probs[index(t * s.experts + b)];
    });
    chosen.insert(chosen.end(), order.begin(), order.begin() + s.copies);
  }
  return chosen;
}

Values weights_of(const Values& probs, const Values& chosen, const Sizes& s, bool normalise,
                  double scale = 1) {
  Values weights;
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    double sum = 0;
    const auto prob = [&](std::int64_t k) {
      return probs[index(t * s.experts) + static_cast<std::size_t>(chosen[index(t * s.copies + k)])];
    };
    for (std::int64_t k = 0; k < s.copies; ++k) sum += prob(k);
    for (std::int64_t k = 0; k < s.copies; ++k) weights.push_back(scale * prob(k) / (normalise ? sum : 1));
  }
  return weights;
}

/// Choices without equal experts of one token; the last expert gets none if there are others. Some tokens are
/// padding.
Values drawn_choices(const Sizes& s) {
  std::mt19937 generator(11);
  Values chosen;
  const std::int64_t used = std::max(s.copies, s.experts - 1);
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    const auto first = static_cast<std::int64_t>(generator() % static_cast<unsigned>(used));
    for (std::int64_t k = 0; k < s.copies; ++k)
      chosen.push_back(t % 5 == 3 ? -1.0 : static_cast<double>((first + k) % used));
  }
  return chosen;
}

/// The first `count` values; the others have no defined value.
Values used_of(Values values, std::int64_t count) {
  values.resize(index(count));
  return values;
}

/// Chooses the world's kind of device as long as it lives.
struct DeviceAge {
  bool chosen;
  explicit DeviceAge(bool older) : chosen(set_older_device(older)) {}
  ~DeviceAge() { set_older_device(false); }
};

constexpr Sizes kRoutings[] = {{1, 1, 1}, {7, 3, 2}, {9, 40, 8}, {20, 130, 6}, {300, 8, 2}};

}  // namespace

TEST_CASE("tokens are routed to the experts with the largest scores, and padding to none", "[experts]") {
  const bool normalise = GENERATE(true, false), padded = GENERATE(false, true),
             biased = GENERATE(false, true);
  const RouterScore score = GENERATE(RouterScore::softmax, RouterScore::sigmoid);
  for (const DType dtype : kActivationDtypes)
    for (const Sizes& s : kRoutings) {
      Values logits = normal_values(s.tokens * s.experts, 3, dtype, 2.0);
      if (s.experts > 2) logits[1] = logits[2] = 9;  // equal: the first is chosen first
      const Values probs = scores_of(logits, s, score);
      const Values biases = biased ? normal_values(s.experts, 8, DType::f32, 3.0) : Values{};
      const float scale = biased ? 2.5f : 1.0f;
      Values chosen = choices(probs, s, biases), weights = weights_of(probs, chosen, s, normalise, scale),
             real;
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        real.push_back(t % 4 == 2 ? 0 : 1);
        for (std::int64_t i = t * s.copies; padded && t % 4 == 2 && i < (t + 1) * s.copies; ++i)
          chosen[index(i)] = -1, weights[index(i)] = 0;
      }
      check_operator([&](Machine& m) {
        const kernels::RouteForward a{.logits_TE = m.tensor(dtype, {s.tokens, s.experts}, logits),
                                      .score = score,
                                      .bias_E = biased ? m.tensor(DType::f32, {s.experts}, biases) : Tensor{},
                                      .normalise = normalise,
                                      .factor = scale,
                                      .real_T = padded ? m.tensor(DType::i32, {s.tokens}, real) : Tensor{},
                                      .probs_TE = m.empty(DType::f32, {s.tokens, s.experts}),
                                      .expert_TK = m.empty(DType::i32, {s.tokens, s.copies}),
                                      .weight_TK = m.empty(DType::f32, {s.tokens, s.copies})};
        m.backend().route_forward(m.stream(), a);
        CHECK(Machine::read(a.expert_TK) == chosen);
        return std::vector<Output>{{"scores", a.probs_TE, probs, s.experts},
                                   {"weights", a.weight_TK, weights, s.experts}};
      });
    }
}

TEST_CASE("with groups tokens choose among the experts of the best ones", "[experts]") {
  struct Grouped {
    Sizes sizes;
    std::int64_t groups, top;
  };
  const RouterScore score = GENERATE(RouterScore::softmax, RouterScore::sigmoid);
  const bool biased = GENERATE(false, true);
  for (const DType dtype : kActivationDtypes)
    for (const auto& [s, groups, top] : {Grouped{{9, 8, 3}, 4, 2},
                                         {{20, 256, 8}, 8, 4},
                                         {{7, 64, 4}, 32, 3},
                                         {{5, 6, 2}, 2, 2},
                                         {{30, 160, 6}, 8, 3}}) {
      Values logits = normal_values(s.tokens * s.experts, 3, dtype, 2.0);
      logits[1] = logits[s.experts == 8 ? 3 : 2] = 9;  // equal values
      const Values probs = scores_of(logits, s, score);
      const Values biases = biased ? normal_values(s.experts, 8, DType::f32, 3.0) : Values{};
      Values values = probs;
      for (std::size_t i = 0; i < values.size() && biased; ++i) values[i] += biases[i % biases.size()];
      const std::int64_t each = s.experts / groups;
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        Values of_groups;
        for (std::int64_t g = 0; g < groups; ++g) {
          const auto first = values.begin() + t * s.experts + g * each;
          Values sorted(first, first + each);
          std::sort(sorted.rbegin(), sorted.rend());
          of_groups.push_back(score == RouterScore::sigmoid ? sorted[0] + sorted[1] : sorted[0]);
        }
        const Values kept = choices(of_groups, {1, groups, top});
        for (std::int64_t g = 0; g < groups; ++g)
          if (std::find(kept.begin(), kept.end(), static_cast<double>(g)) == kept.end())
            std::fill_n(values.begin() + t * s.experts + g * each, each,
                        -std::numeric_limits<double>::infinity());
      }
      const Values chosen = choices(values, s), weights = weights_of(probs, chosen, s, true);
      CHECK((chosen != choices(probs, s, biases)) == (top < groups));
      check_operator([&, &sizes = s, &count = groups, &best = top](Machine& m) {
        const kernels::RouteForward a{
            .logits_TE = m.tensor(dtype, {sizes.tokens, sizes.experts}, logits),
            .score = score,
            .bias_E = biased ? m.tensor(DType::f32, {sizes.experts}, biases) : Tensor{},
            .groups = count,
            .top_groups = best,
            .probs_TE = m.empty(DType::f32, {sizes.tokens, sizes.experts}),
            .expert_TK = m.empty(DType::i32, {sizes.tokens, sizes.copies}),
            .weight_TK = m.empty(DType::f32, {sizes.tokens, sizes.copies})};
        m.backend().route_forward(m.stream(), a);
        CHECK(Machine::read(a.expert_TK) == chosen);
        return std::vector<Output>{{"weights", a.weight_TK, weights, sizes.experts}};
      });
    }
}

TEST_CASE("tokens without numbers still have experts, with weights that are not numbers", "[experts]") {
  const bool normalise = GENERATE(true, false);
  const RouterScore score = GENERATE(RouterScore::softmax, RouterScore::sigmoid);
  for (const kernels::Isa isa : instruction_sets()) {
    Machine m(isa, 1);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const kernels::RouteForward a{.logits_TE = m.tensor(DType::f32, {1, 3}, {nan, nan, nan}),
                                  .score = score,
                                  .normalise = normalise,
                                  .probs_TE = m.empty(DType::f32, {1, 3}),
                                  .expert_TK = m.empty(DType::i32, {1, 2}),
                                  .weight_TK = m.empty(DType::f32, {1, 2})};
    m.backend().route_forward(m.stream(), a);
    const Values chosen = Machine::read(a.expert_TK);
    for (const double expert : chosen) CHECK((expert >= 0 && expert < 3));
    CHECK(chosen[0] != chosen[1]);
    for (const double prob : Machine::read(a.probs_TE)) CHECK(std::isnan(prob));
    for (const double weight : Machine::read(a.weight_TK)) CHECK(std::isnan(weight));
  }
}

TEST_CASE("route backward matches finite differences of weights and balance", "[experts]") {
  const bool normalise = GENERATE(true, false);
  const RouterScore score = GENERATE(RouterScore::softmax, RouterScore::sigmoid);
  const float scale = score == RouterScore::sigmoid ? 2.5f : 1.0f;
  const std::int64_t chunks = GENERATE(1, 2), sequences = 2;
  for (const DType dtype : kActivationDtypes)
    for (const Sizes& s : {Sizes{8, 3, 2}, Sizes{4, 40, 8}, Sizes{8, 130, 3}}) {
      const Values logits = normal_values(s.tokens * s.experts, 3, DType::f32),
                   probs = scores_of(logits, s, score), chosen = choices(probs, s),
                   dweights = normal_values(s.tokens * s.copies, 4, DType::f32),
                   loss_weights = normal_values(s.tokens, 5, DType::f32);
      Values counts(index(sequences * s.experts)), counted(index(sequences));
      for (std::size_t i = 0; i < counts.size(); ++i) {
        counts[i] = static_cast<double>(i % 7);
        counted[i / index(s.experts)] += counts[i];
      }
      const double balance = 6;
      const auto loss = [&](bool balanced) {
        return [&, balanced](const Values& x) {
          Values p = scores_of(x, s, score);
          double total = dot(weights_of(p, chosen, s, normalise, scale), dweights);
          make_shares(p, s);
          for (std::int64_t t = 0; balanced && t < s.tokens; ++t) {
            const std::int64_t sequence = t / (s.tokens / (chunks * sequences)) % sequences;
            for (std::int64_t e = 0; e < s.experts; ++e)
              total += balance * loss_weights[index(t)] * counts[index(sequence * s.experts + e)] /
                       counted[index(sequence)] * p[index(t * s.experts + e)];
          }
          return total;
        };
      };
      Values losses, shares = probs;
      make_shares(shares, s);
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        const std::int64_t sequence = t / (s.tokens / (chunks * sequences)) % sequences;
        double sum = 0;
        for (std::int64_t e = 0; e < s.experts; ++e)
          sum += counts[index(sequence * s.experts + e)] * shares[index(t * s.experts + e)];
        losses.push_back(balance * loss_weights[index(t)] * sum / counted[index(sequence)]);
      }
      const Values of_weights = numeric_gradient(loss(false), logits),
                   of_both = numeric_gradient(loss(true), logits);
      check_operator([&](Machine& m) {
        kernels::RouteBackward a{.probs_TE = m.tensor(DType::f32, {s.tokens, s.experts}, probs),
                                 .expert_TK = m.tensor(DType::i32, {s.tokens, s.copies}, chosen),
                                 .score = score,
                                 .normalise = normalise,
                                 .factor = scale,
                                 .dweight_TK = m.tensor(DType::f32, {s.tokens, s.copies}, dweights),
                                 .dlogits_TE = m.empty(dtype, {s.tokens, s.experts}),
                                 .count_BE = {},
                                 .range = {.chunks = chunks},
                                 .loss_weight_T = {}};
        m.backend().route_backward(m.stream(), a);
        std::vector<Output> outputs{{"of weights", a.dlogits_TE, of_weights, s.experts}};
        a.dlogits_TE = m.empty(dtype, {s.tokens, s.experts});
        a.balance = static_cast<float>(balance);
        a.count_BE = m.tensor(DType::f32, {sequences, s.experts}, counts);
        a.loss_weight_T = m.tensor(DType::f32, {s.tokens}, loss_weights);
        a.loss_T = m.empty(DType::f32, {s.tokens});
        m.backend().route_backward(m.stream(), a);
        outputs.push_back({"of both", a.dlogits_TE, of_both, s.experts});
        outputs.push_back({"balance loss", a.loss_T, losses, s.experts});
        // A loss scale is a factor of the gradient of the balance loss; that of the weights comes with it.
        Values scaled_dweights = dweights, scaled = of_both;
        for (double& x : scaled_dweights) x *= 8;
        for (double& x : scaled) x *= 8;
        kernels::RouteBackward by_scale = a;
        by_scale.dweight_TK = m.tensor(DType::f32, {s.tokens, s.copies}, scaled_dweights);
        by_scale.loss_scale = m.tensor(DType::f32, {1}, {8.0});
        by_scale.dlogits_TE = m.empty(dtype, {s.tokens, s.experts});
        by_scale.loss_T = m.empty(DType::f32, {s.tokens});
        m.backend().route_backward(m.stream(), by_scale);
        outputs.push_back({"scaled", by_scale.dlogits_TE, scaled, s.experts});
        outputs.push_back({"balance loss beside a scale", by_scale.loss_T, losses, s.experts});
        const Tensor whole = a.dlogits_TE, parts = m.empty(dtype, whole.shape);
        for (const std::int64_t begin : {0, 1}) {  // the first token, and the others
          kernels::RouteBackward part = a;
          part.range.first = begin, part.range.all = s.tokens;
          for (Tensor* x : {&part.probs_TE, &part.expert_TK, &part.dweight_TK, &part.loss_weight_T})
            *x = x->rows(begin, begin == 0 ? 1 : s.tokens - 1);
          part.dlogits_TE = parts.rows(begin, part.probs_TE.size(0));
          part.loss_T = m.empty(DType::f32, {part.probs_TE.size(0)});
          m.backend().route_backward(m.stream(), part);
        }
        CHECK(Machine::read(parts) == Machine::read(whole));
        Values padded = of_both, none = chosen;  // the second token is padding
        std::fill_n(padded.begin() + s.experts, s.experts, 0.0);
        std::fill_n(none.begin() + s.copies, s.copies, -1.0);
        a.expert_TK = m.tensor(DType::i32, {s.tokens, s.copies}, none);
        a.dlogits_TE = m.empty(dtype, {s.tokens, s.experts});
        a.loss_T = m.empty(DType::f32, {s.tokens});
        m.backend().route_backward(m.stream(), a);
        outputs.push_back({"with padding", a.dlogits_TE, padded, s.experts});
        Values left = losses;
        left[1] = 0;
        outputs.push_back({"balance loss with padding", a.loss_T, left, s.experts});
        return outputs;
      });
    }
}

TEST_CASE("copies are counted by sequence and sorted by expert", "[experts]") {
  for (const Sizes& s : {Sizes{2, 1, 1}, Sizes{8, 3, 2}, Sizes{12, 40, 8}, Sizes{600, 300, 3}}) {
    const std::int64_t chunks = s.tokens % 4 == 0 ? 2 : 1, sequences = 2,
                       run = s.tokens / (chunks * sequences);
    const Values chosen = drawn_choices(s);
    Values counts(index(sequences * s.experts)), first(index(s.experts + 1)), source,
        rows(chosen.size(), -1.0);
    for (std::int64_t e = 0; e < s.experts; ++e) {
      first[index(e)] = static_cast<double>(source.size());
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        if (chosen[i] != static_cast<double>(e)) continue;
        const std::int64_t token = static_cast<std::int64_t>(i) / s.copies;
        counts[index(token / run % sequences * s.experts + e)] += 1;
        rows[i] = static_cast<double>(source.size());
        source.push_back(static_cast<double>(i));
      }
    }
    first.back() = static_cast<double>(source.size());
    source.resize(chosen.size(), -1.0);
    for (const kernels::Isa isa : instruction_sets()) {
      Machine m(isa, 2);
      const auto copies = s.tokens * s.copies;
      const Tensor chosen_TK = m.tensor(DType::i32, {s.tokens, s.copies}, chosen);
      const kernels::CountExperts c{.expert_TK = chosen_TK,
                                    .count_BE = m.empty(DType::f32, {sequences, s.experts}),
                                    .range = {.chunks = chunks}};
      const kernels::SortExperts a{.expert_TK = chosen_TK,
                                   .first_E = m.empty(DType::i32, {s.experts + 1}),
                                   .source_R = m.empty(DType::i32, {copies}),
                                   .row_TK = m.empty(DType::i32, {s.tokens, s.copies}),
                                   .flag = {}};
      m.backend().count_experts(m.stream(), c);
      m.backend().sort_experts(m.stream(), a);
      CHECK(Machine::read(c.count_BE) == counts);
      kernels::CountExperts again = c;
      again.mode = WriteMode::accumulate;
      m.backend().count_experts(m.stream(), again);
      Values twice = counts;
      for (double& count : twice) count *= 2;
      CHECK(Machine::read(c.count_BE) == twice);
      const std::int64_t cut = (s.tokens + 1) / 3;  // inside a sequence
      for (const std::int64_t begin : {std::int64_t{0}, cut})
        m.backend().count_experts(m.stream(),
                                  {.expert_TK = chosen_TK.rows(begin, begin == 0 ? cut : s.tokens - cut),
                                   .count_BE = c.count_BE,
                                   .range = {.chunks = chunks, .first = begin, .all = s.tokens},
                                   .mode = begin == 0 ? WriteMode::assign : WriteMode::accumulate});
      CHECK(Machine::read(c.count_BE) == counts);
      CHECK(Machine::read(a.first_E) == first);
      CHECK(Machine::read(a.source_R) == source);
      CHECK(Machine::read(a.row_TK) == rows);
      CHECK(m.scratch().top() == 0);
    }
  }
}

TEST_CASE("a rank sorts the copies that chose its experts, as many as it has rows for", "[experts]") {
  struct Case {
    std::int64_t first_expert, experts, rows;
  };
  const Sizes s{12, 7, 3};
  const Values chosen = drawn_choices(s);
  // All experts, those in the middle, the last, which nobody chose; rows to spare, just enough, too few.
  for (const Case& c : {Case{0, 7, 36}, Case{2, 3, 30}, Case{6, 1, 5}, Case{0, 2, 9}, Case{2, 3, 4}}) {
    Values first(index(c.experts + 1)), source(index(c.rows), -1.0), rows(chosen.size(), -1.0);
    std::int64_t used = 0;
    for (std::int64_t e = 0; e < c.experts; ++e) {
      first[index(e)] = static_cast<double>(std::min(used, c.rows));
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        if (chosen[i] != static_cast<double>(c.first_expert + e)) continue;
        if (used < c.rows) {
          rows[i] = static_cast<double>(used);
          source[index(used)] = static_cast<double>(i);
        }
        ++used;
      }
    }
    first.back() = static_cast<double>(std::min(used, c.rows));
    CAPTURE(c.first_expert, c.experts, c.rows, used);
    for (const kernels::Isa isa : instruction_sets()) {
      Machine m(isa, 2);
      const kernels::SortExperts a{.expert_TK = m.tensor(DType::i32, {s.tokens, s.copies}, chosen),
                                   .first_expert = c.first_expert,
                                   .first_E = m.empty(DType::i32, {c.experts + 1}),
                                   .source_R = m.empty(DType::i32, {c.rows}),
                                   .row_TK = m.empty(DType::i32, {s.tokens, s.copies}),
                                   .flag = m.tensor(DType::f32, {1}, {3.0}),
                                   .flag_value = 7.5f};
      m.backend().sort_experts(m.stream(), a);
      CHECK(Machine::read(a.first_E) == first);
      CHECK(Machine::read(a.source_R) == source);
      CHECK(Machine::read(a.row_TK) == rows);
      CHECK(Machine::read(a.flag) == Values{used > c.rows ? 7.5 : 3.0});
    }
  }
}

TEST_CASE("tokens get slots at the ranks of their experts, in their order and once each", "[experts]") {
  struct Case {
    std::int64_t tokens, ranks, experts_of_rank, copies, slots;
  };
  // One token; more threads' worth of tokens than a block has; too few slots.
  for (const Case& c :
       {Case{1, 2, 1, 1, 1}, Case{700, 4, 3, 5, 700}, Case{300, 8, 2, 3, 100}, Case{300, 3, 4, 2, 20}}) {
    std::mt19937 random(5);
    Values chosen, weights;
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      std::vector<double> all(index(c.ranks * c.experts_of_rank));
      std::iota(all.begin(), all.end(), 0.0);
      std::shuffle(all.begin(), all.end(), random);
      const bool padding = t % 11 == 10;
      for (std::int64_t k = 0; k < c.copies; ++k) {
        chosen.push_back(padding ? -1 : all[index(k)]);
        weights.push_back(padding ? 0 : static_cast<double>(chosen.size()));
      }
    }
    Values slot(chosen.size(), -1.0), source(index(c.ranks * c.slots), -1.0);
    bool crowded = false;
    for (std::int64_t rank = 0; rank < c.ranks; ++rank) {
      std::int64_t used = 0;
      for (std::int64_t t = 0; t < c.tokens; ++t) {
        std::vector<std::size_t> here;
        for (std::int64_t i = t * c.copies; i < (t + 1) * c.copies; ++i)
          if (chosen[index(i)] >= 0 &&
              std::floor(chosen[index(i)] / static_cast<double>(c.experts_of_rank)) ==
                  static_cast<double>(rank))
            here.push_back(index(i));
        if (here.empty()) continue;
        if (used == c.slots) {
          crowded = true;
          continue;
        }
        const double mine = static_cast<double>(rank * c.slots + used++);
        source[static_cast<std::size_t>(mine)] = static_cast<double>(here[0]);
        for (const std::size_t i : here) slot[i] = i == here[0] ? mine : -2 - mine;
      }
    }
    Values slot_experts, slot_weights, back(slot.size(), 0.0);
    for (const double s : source)
      for (std::int64_t k = 0; k < c.copies; ++k) {
        const std::size_t from =
            s < 0 ? 0 : static_cast<std::size_t>(s) / index(c.copies) * index(c.copies) + index(k);
        slot_experts.push_back(s < 0 ? -1 : chosen[from]);
        slot_weights.push_back(s < 0 ? 0 : weights[from]);
      }
    for (std::size_t i = 0; i < slot.size(); ++i) {
      const double own = slot[i] < -1 ? -2 - slot[i] : slot[i];
      if (own >= 0)
        back[i] = slot_weights[static_cast<std::size_t>(own) * index(c.copies) + i % index(c.copies)];
    }
    CAPTURE(c.tokens, c.ranks, c.slots);
    for (const kernels::Isa isa : instruction_sets()) {
      Machine m(isa, 2);
      const Shape of_tokens{c.tokens, c.copies}, of_slots{c.ranks * c.slots, c.copies};
      const Tensor expert_TK = m.tensor(DType::i32, of_tokens, chosen),
                   weight_TK = m.tensor(DType::f32, of_tokens, weights);
      const kernels::PlaceTokens place{.expert_TK = expert_TK,
                                       .experts_of_rank = c.experts_of_rank,
                                       .slot_TK = m.empty(DType::i32, of_tokens),
                                       .source_NS = m.empty(DType::i32, {c.ranks, c.slots}),
                                       .flag = m.tensor(DType::f32, {1}, {3.0}),
                                       .flag_value = 7.5f};
      m.backend().place_tokens(m.stream(), place);
      CHECK(Machine::read(place.slot_TK) == slot);
      CHECK(Machine::read(place.source_NS) == source);
      CHECK(Machine::read(place.flag) == Values{crowded ? 7.5 : 3.0});
      const kernels::SlotChoices choices{.expert_TK = expert_TK,
                                         .weight_TK = weight_TK,
                                         .source_NS = place.source_NS,
                                         .expert_RK = m.empty(DType::i32, of_slots),
                                         .weight_RK = m.empty(DType::f32, of_slots)};
      m.backend().slot_choices(m.stream(), choices);
      CHECK(Machine::read(choices.expert_RK) == slot_experts);
      CHECK(Machine::read(choices.weight_RK) == slot_weights);
      const kernels::SlotWeights returned{.from_RK = choices.weight_RK,
                                          .slot_TK = place.slot_TK,
                                          .weight_TK = m.empty(DType::f32, of_tokens)};
      m.backend().slot_weights(m.stream(), returned);
      CHECK(Machine::read(returned.weight_TK) == back);
    }
  }
}

TEST_CASE("copies without a row, and rows without a copy, take no part", "[experts]") {
  check_operator([](Machine& m) {
    // Two tokens with two copies each: rows 0 and 2 hold copies 3 and 0.
    const Tensor source = m.ids({3, -1, 0}), row_TK = m.tensor(DType::i32, {2, 2}, {2, -1, -1, 0}),
                 weight = m.tensor(DType::f32, {2, 2}, {0.5, 7, 7, 0.25}),
                 x = m.tensor(DType::f32, {2, 1}, {10, 20}), rows = m.tensor(DType::f32, {3, 1}, {4, 99, 8}),
                 dact = m.tensor(DType::f32, {3, 1}, {1, 2, 3}),
                 act = m.tensor(DType::f32, {3, 1}, {5, 6, 7}),
                 dweight = m.tensor(DType::f32, {2, 2}, {0, 1, 2, 0}),
                 gathered = m.tensor(DType::f32, {3, 1}, {7, 8, 9}), sums = m.empty(DType::f32, {2, 1}),
                 weighed = m.empty(DType::f32, {2, 1});
    m.backend().gather_rows(m.stream(), {x, source, 2, gathered});
    m.backend().combine_rows(m.stream(), {rows, row_TK, {}, sums});
    m.backend().combine_rows(m.stream(), {rows, row_TK, weight, weighed});
    m.backend().weigh_rows(m.stream(), {source, weight, dact, act, dweight});
    return std::vector<Output>{{"gathered", gathered, {20, 8, 10}}, {"sums", sums, {8, 4}},
                               {"weighed", weighed, {4, 1}},        {"dweight", dweight, {21, 1, 2, 5}},
                               {"dact", dact, {0.25, 2, 1.5}},      {"act", act, {1.25, 6, 3.5}}};
  });
}

TEST_CASE("rows are gathered by expert, weighed and combined by token", "[experts]") {
  for (const DType dtype : kActivationDtypes)
    for (const std::int64_t columns : {1, 37, 64}) {
      const std::int64_t tokens = 5, copies = 3, rows = tokens * copies;
      std::vector<std::int32_t> source(index(rows)), row_of(index(rows));
      for (std::int64_t r = 0; r < rows; ++r) {
        source[index(r)] = static_cast<std::int32_t>(r * 7 % rows);  // 7 and 15 have no common divisor
        row_of[index(r * 7 % rows)] = static_cast<std::int32_t>(r);
      }
      const Values x = normal_values(tokens * columns, 1, dtype),
                   weights = normal_values(rows, 2, DType::f32),
                   act = normal_values(rows * columns, 3, dtype),
                   dact = normal_values(rows * columns, 4, dtype);
      Values gathered, plain(x.size()), weighed(x.size()), dweights(index(rows)), scaled_act, scaled_dact;
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        const std::int64_t copy = source[index(i / columns)], place = copy / copies * columns + i % columns;
        gathered.push_back(x[index(place)]);
        plain[index(place)] += act[index(i)];
        weighed[index(place)] += weights[index(copy)] * act[index(i)];
        dweights[index(copy)] += act[index(i)] * dact[index(i)];
        scaled_act.push_back(weights[index(copy)] * act[index(i)]);
        scaled_dact.push_back(weights[index(copy)] * dact[index(i)]);
      }
      check_operator([&](Machine& m) {
        const Shape wide{rows, columns}, narrow{tokens, columns}, pairs{tokens, copies};
        const Tensor from = m.tensor(dtype, wide, act), source_R = m.ids(source),
                     weight_TK = m.tensor(DType::f32, pairs, weights),
                     row_TK = m.tensor(DType::i32, pairs, Values(row_of.begin(), row_of.end()));
        const kernels::GatherRows g{m.tensor(dtype, narrow, x), source_R, copies, m.empty(dtype, wide)};
        const kernels::CombineRows sum{from, row_TK, {}, m.empty(dtype, narrow)},
            mean{from, row_TK, weight_TK, m.empty(dtype, narrow)};
        const kernels::WeighRows w{source_R, weight_TK, m.tensor(dtype, wide, dact),
                                   m.tensor(dtype, wide, act), m.empty(DType::f32, pairs)};
        m.backend().gather_rows(m.stream(), g);
        m.backend().combine_rows(m.stream(), sum);
        m.backend().combine_rows(m.stream(), mean);
        m.backend().weigh_rows(m.stream(), w);
        return std::vector<Output>{{"gathered", g.to_RD, gathered},
                                   {"sums", sum.to_TD, plain, copies},
                                   {"weighed sums", mean.to_TD, weighed, copies},
                                   {"gradients of weights", w.dweight_TK, dweights, columns},
                                   {"act", w.act_RF, scaled_act},
                                   {"dact", w.dact_RF, scaled_dact}};
      });
    }
}

TEST_CASE("biases of experts are added to their rows, and get the sums of their gradients", "[experts]") {
  // An expert without rows, and rows that are not in use.
  const std::vector<std::int32_t> first{0, 3, 3, 4, 9};
  const std::int64_t rows = 11, experts = 4, used = 9;
  const DType gradients = GENERATE(DType::f32, DType::bf16);
  for (const DType dtype : kActivationDtypes)
    for (const std::int64_t columns : {1, 37, 64, 600}) {
      if (dtype == DType::f16 && gradients == DType::bf16) continue;
      std::vector<std::int32_t> source(index(rows), -1);
      for (std::int64_t r = 0; r < used; ++r) source[index(r)] = static_cast<std::int32_t>(r * 5 % 12);
      const Values y = normal_values(rows * columns, 1, dtype), dy = normal_values(rows * columns, 2, dtype),
                   bias = normal_values(experts * columns, 3, dtype),
                   before = normal_values(experts * columns, 4, gradients),
                   weights = normal_values(12, 5, DType::f32), dweights = normal_values(12, 6, DType::f32);
      Values sums = y, plain(bias.size()), weighed = before, more = dweights;
      for (std::int64_t e = 0; e < experts; ++e)
        for (std::int64_t r = first[index(e)]; r < first[index(e + 1)]; ++r)
          for (std::int64_t c = 0; c < columns; ++c) {
            const std::size_t at = index(r * columns + c), of = index(e * columns + c),
                              copy = static_cast<std::size_t>(source[index(r)]);
            sums[at] += bias[of];
            plain[of] += dy[at];
            weighed[of] += weights[copy] * dy[at];
            more[copy] += dy[at] * bias[of];
          }
      check_operator([&](Machine& m) {
        const Tensor first_E = m.ids(first), out = m.tensor(dtype, {rows, columns}, y),
                     d = m.tensor(dtype, {rows, columns}, dy), b = m.tensor(dtype, {experts * columns}, bias),
                     assigned = m.empty(gradients, {experts * columns}),
                     added = m.tensor(gradients, {experts * columns}, before),
                     dweight = m.tensor(DType::f32, {4, 3}, dweights),
                     alone = m.tensor(DType::f32, {4, 3}, dweights);
        m.backend().add_expert_bias(m.stream(), {.y_RN = out, .bias_EN = b, .first_E = first_E});
        m.backend().expert_bias_backward(
            m.stream(), {.dy_RN = d, .first_E = first_E, .dbias_EN = assigned, .mode = WriteMode::assign});
        kernels::ExpertBiasBackward a{.dy_RN = d,
                                      .first_E = first_E,
                                      .dbias_EN = added,
                                      .source_R = m.ids(source),
                                      .weight_TK = m.tensor(DType::f32, {4, 3}, weights),
                                      .bias_EN = b,
                                      .dweight_TK = dweight};
        m.backend().expert_bias_backward(m.stream(), a);
        a.dbias_EN = {}, a.dweight_TK = alone;
        m.backend().expert_bias_backward(m.stream(), a);
        return std::vector<Output>{{"sums", out, sums},
                                   {"gradients", assigned, plain, used},
                                   {"gradients with weights", added, weighed, used},
                                   {"gradients of weights", dweight, more, columns},
                                   {"gradients of weights alone", alone, more, columns}};
      });
    }
}

TEST_CASE("products of experts equal those of each expert alone", "[experts][gemm]") {
  const bool older = GENERATE(false, true);
  const DeviceAge device(older);
  if (older && !device.chosen) return;
  struct Case {
    std::vector<std::int32_t> first;
    std::int64_t n, c, unused;  ///< rows that are not in use
  };
  // No rows, one, a tile and more; sizes for tensor cores, of one tile and of several, with more summands
  // than all stages hold, and sizes that are not; more experts than a warp has lanes; no row in use.
  std::vector<Case> cases{{{0, 5, 5, 6}, 7, 9, 0},
                          {{0, 5, 5, 6}, 7, 9, 300},
                          {{0, 0, 130, 131, 150}, 24, 72, 0},
                          {{0, 3, 67}, 136, 152, 300},
                          {{0, 3, 330}, 264, 392, 0},
                          {{0, 0, 0}, 8, 16, 40},
                          {{0, 0, 0}, 7, 9, 40},
                          {{0}, 8, 8, 3}};
  for (std::int32_t e = 1; e <= 70; ++e)
    cases.back().first.push_back(e > 65 ? 140 + e : e > 30 ? e + 1 : e / 2);
  std::size_t turn = 0;
  for (const DType dtype : kActivationDtypes)
    for (const Case& c : cases) {
      if (!in_slice(turn++, 6)) continue;
      const auto experts = static_cast<std::int64_t>(c.first.size()) - 1, rows = c.first.back() + c.unused;
      const Values x = normal_values(rows * c.c, 1, dtype), w = normal_values(experts * c.n * c.c, 2, dtype),
                   dy = normal_values(rows * c.n, 3, dtype),
                   before = normal_values(experts * c.n * c.c, 4, DType::bf16);
      const std::int64_t used = c.first.back();
      Values y(dy.size()), dx(x.size()), dw(w.size()), sum = before;
      for (std::int64_t e = 0; e < experts; ++e)
        for (std::int64_t r = c.first[index(e)]; r < c.first[index(e + 1)]; ++r)
          for (std::int64_t n = 0; n < c.n; ++n)
            for (std::int64_t k = 0; k < c.c; ++k) {
              const std::size_t of_x = index(r * c.c + k), of_y = index(r * c.n + n),
                                of_w = index((e * c.n + n) * c.c + k);
              y[of_y] += x[of_x] * w[of_w];
              dx[of_x] += dy[of_y] * w[of_w];
              dw[of_w] += dy[of_y] * x[of_x];
            }
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += dw[i];
      check_operator([&](Machine& m) {
        const Shape weight_shape{experts * c.n, c.c};
        const Tensor x_RC = m.tensor(dtype, {rows, c.c}, x), dy_RN = m.tensor(dtype, {rows, c.n}, dy),
                     weight = m.tensor(dtype, weight_shape, w), first_E = m.ids(c.first),
                     y_RN = m.empty(dtype, {rows, c.n}), dx_RC = m.empty(dtype, {rows, c.c});
        m.backend().expert_fprop(m.stream(), {x_RC, weight, first_E, y_RN});
        m.backend().expert_dgrad(m.stream(), {dy_RN, weight, first_E, dx_RC});
        std::vector<Output> outputs{{"y", y_RN.rows(0, used), used_of(y, used * c.n), c.c},
                                    {"dx", dx_RC.rows(0, used), used_of(dx, used * c.c), c.n}};
        for (const DType gradient : kStateDtypes) {
          if (mixed(dtype, gradient)) continue;
          const Tensor assigned = m.empty(gradient, weight_shape),
                       added = m.tensor(gradient, weight_shape, before);
          m.backend().expert_wgrad(m.stream(), {dy_RN, x_RC, first_E, assigned, WriteMode::assign});
          m.backend().expert_wgrad(m.stream(), {dy_RN, x_RC, first_E, added, WriteMode::accumulate});
          outputs.push_back({"dweight", assigned, dw, rows});
          outputs.push_back({"dweight added", added, sum, rows});
        }
        return outputs;
      });
    }
}

TEST_CASE(
    "products of experts in FP8 are those of each expert's operands, rounded in blocks from its first row",
    "[experts][gemm][fp8]") {
  struct Case {
    std::vector<std::int32_t> first;
    std::int64_t n, c, unused;  ///< rows that are not in use
  };
  if (!multiplies_fp8()) return;
  using gemm_cases::in_fp8;
  using gemm_cases::kBlock;
  // No rows, one, a block, more, and one more than some; no row in use.
  const std::vector<Case> cases{
      {{0, 0, 130, 131, 259}, 128, 256, 0}, {{0, 3, 67, 324}, 384, 128, 40}, {{0, 0, 0}, 128, 128, 7}};
  for (const Case& c : cases) {
    const auto experts = static_cast<std::int64_t>(c.first.size()) - 1, rows = c.first.back() + c.unused;
    const std::int64_t used = c.first.back();
    // Blocks of different magnitudes.
    Values x = normal_values(rows * c.c, 1, DType::bf16),
           w = normal_values(experts * c.n * c.c, 2, DType::bf16);
    const Values dy = normal_values(rows * c.n, 3, DType::bf16),
                 before = normal_values(experts * c.n * c.c, 4, DType::bf16);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::ldexp(1, static_cast<int>(i / 64 % 5) * 6 - 12);
    for (std::size_t i = 0; i < w.size(); ++i) w[i] *= std::ldexp(1, static_cast<int>(i / 1000 % 3) * 4);
    Values y(dy.size()), dx(x.size()), dw(w.size()), sum = before;
    const auto part = [](const Values& of, std::int64_t from, std::int64_t count) {
      return Values(of.begin() + from, of.begin() + from + count);
    };
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int64_t first = c.first[index(e)], own = c.first[index(e + 1)] - first, n = c.n, k = c.c;
      const Values x_e = part(x, first * k, own * k), dy_e = part(dy, first * n, own * n),
                   w8 = in_fp8(part(w, e * n * k, n * k), k, kBlock, kBlock),
                   x_rows = in_fp8(x_e, k, 1, kBlock), x_columns = in_fp8(x_e, k, kBlock, 1),
                   dy_rows = in_fp8(dy_e, n, 1, kBlock), dy_columns = in_fp8(dy_e, n, kBlock, 1);
      for (std::int64_t r = 0; r < own; ++r)
        for (std::int64_t i = 0; i < n; ++i)
          for (std::int64_t j = 0; j < k; ++j) {
            y[index((first + r) * n + i)] += x_rows[index(r * k + j)] * w8[index(i * k + j)];
            dx[index((first + r) * k + j)] += dy_rows[index(r * n + i)] * w8[index(i * k + j)];
            dw[index((e * n + i) * k + j)] += dy_columns[index(r * n + i)] * x_columns[index(r * k + j)];
          }
    }
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += dw[i];
    check_operator([&](Machine& m) {
      constexpr auto fp8 = kernels::GemmFormat::fp8;
      const Shape weight_shape{experts * c.n, c.c};
      const Tensor x_RC = m.tensor(DType::bf16, {rows, c.c}, x),
                   dy_RN = m.tensor(DType::bf16, {rows, c.n}, dy),
                   weight = m.tensor(DType::bf16, weight_shape, w), first_E = m.ids(c.first),
                   y_RN = m.empty(DType::bf16, {rows, c.n}), dx_RC = m.empty(DType::bf16, {rows, c.c}),
                   assigned = m.empty(DType::f32, weight_shape),
                   added = m.tensor(DType::f32, weight_shape, before);
      m.backend().expert_fprop(m.stream(), {x_RC, weight, first_E, y_RN, fp8});
      m.backend().expert_dgrad(m.stream(), {dy_RN, weight, first_E, dx_RC, fp8});
      m.backend().expert_wgrad(m.stream(), {dy_RN, x_RC, first_E, assigned, WriteMode::assign, fp8});
      m.backend().expert_wgrad(m.stream(), {dy_RN, x_RC, first_E, added, WriteMode::accumulate, fp8});
      return std::vector<Output>{{"y", y_RN.rows(0, used), used_of(y, used * c.n), c.c},
                                 {"dx", dx_RC.rows(0, used), used_of(dx, used * c.c), c.n},
                                 {"dweight", assigned, dw, rows},
                                 {"dweight added", added, sum, rows}};
    });
  }
}

}  // namespace trainerd::test
