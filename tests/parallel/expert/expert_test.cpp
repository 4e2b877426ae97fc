// Tokens on their way to the ranks of their experts and back: gathered, or sent in slots.

#include "parallel/expert/expert.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <random>
#include <vector>

#include "parallel/comm/local/local_world.h"
#include "tests/parallel/comm_support.h"

using namespace trainerd;
using namespace trainerd::kernels;

namespace {

constexpr std::int64_t kRanks = 4, kTokens = 40, kWidth = 6, kCopies = 3, kOfRank = 2,
                       kExperts = kRanks * kOfRank;

struct ExpertOutcome {
  std::vector<double> sums, expected_sums, choices, expected_choices;
  bool crowded = false;
};

/// Expert e multiplies a token by e + 1, and answers a choice with (e + 1) times its weight.
ExpertOutcome exchange(std::int64_t slots, bool overlap, std::int64_t rank, parallel::LocalWorld& world) {
  test::RankMachine machine;
  const Buffer memory = machine.backend.allocate(MemoryKind::device, std::int64_t{1} << 20);
  Arena scratch("scratch", memory.data(), memory.bytes()), kept("kept", memory.data() + (1 << 19), 1 << 19);
  const auto stream = machine.backend.make_stream("compute", &scratch);
  const auto group = world.communicator(rank, machine.backend, test::all_ranks(kRanks), "ep");
  const parallel::ExpertParallel ep{.group = group.get(), .rows = 0, .slots = slots, .overlap = overlap};
  const auto take = [&](DType dtype, const Shape& shape) {
    return kept.take(dtype, shape, MemoryTerm::activations);
  };
  const Tensor x = take(DType::f32, {kTokens, kWidth}), to = take(DType::f32, {kTokens, kWidth}),
               expert = take(DType::i32, {kTokens, kCopies}), weight = take(DType::f32, {kTokens, kCopies}),
               back = take(DType::f32, {kTokens, kCopies}), flag = take(DType::f32, {1});
  flag.as<float>()[0] = 0;
  std::mt19937 random(static_cast<unsigned>(rank));
  ExpertOutcome outcome;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    std::vector<std::int32_t> all(kExperts);
    for (std::size_t e = 0; e < all.size(); ++e) all[e] = static_cast<std::int32_t>(e);
    std::shuffle(all.begin(), all.end(), random);
    double factor = 0;
    for (std::int64_t k = 0; k < kCopies; ++k) {
      const bool padding = t % 7 == 6;
      const std::int32_t e = padding ? -1 : all[static_cast<std::size_t>(k)];
      const float w = padding ? 0.0f : 0.25f * static_cast<float>(k + 1);
      expert.as<std::int32_t>()[t * kCopies + k] = e;
      weight.as<float>()[t * kCopies + k] = w;
      factor += w * static_cast<float>(e + 1);
      outcome.expected_choices.push_back(w * static_cast<float>(e + 1));
    }
    for (std::int64_t d = 0; d < kWidth; ++d) {
      x.as<float>()[t * kWidth + d] = static_cast<float>(100 * rank + t + d);
      outcome.expected_sums.push_back(factor * static_cast<double>(x.as<float>()[t * kWidth + d]));
    }
  }
  const std::int64_t received = ep.received(kTokens);
  parallel::TokenSlots of_tokens;
  if (slots > 0) of_tokens = {take(DType::i32, {kTokens, kCopies}), take(DType::i32, {kRanks, slots})};
  const parallel::Choices all{take(DType::i32, {received, kCopies}), take(DType::f32, {received, kCopies})};
  parallel::send_choices(ep, machine.backend, *stream, {expert, weight}, of_tokens, kOfRank, flag, 1, all);
  {
    const ArenaScope scope(scratch);
    parallel::TokenTransfer transfer(ep, *stream, x);
    transfer.start(ep, machine.backend, *stream, x, of_tokens, "tokens", ep.progress(*stream, true));
    const Tensor tokens = transfer.arrived(*stream), results = parallel::take_results(ep, *stream, to),
                 answers = parallel::take_results(ep, *stream, back);
    for (std::int64_t t = 0; t < received; ++t) {
      float factor = 0;
      for (std::int64_t k = 0; k < kCopies; ++k) {
        const std::int32_t e = all.expert_TK.as<std::int32_t>()[t * kCopies + k];
        const bool mine = e >= 0 && e / kOfRank == rank;
        const float answer =
            mine ? all.weight_TK.as<float>()[t * kCopies + k] * static_cast<float>(e + 1) : 0.0f;
        answers.as<float>()[t * kCopies + k] = answer;
        factor += answer;
      }
      for (std::int64_t d = 0; d < kWidth; ++d)  // empty slots have tokens without a value
        results.as<float>()[t * kWidth + d] =
            factor == 0 ? 0.0f : factor * tokens.as<float>()[t * kWidth + d];
    }
    // Both are on their way at once.
    const parallel::ResultTransfer of_results(ep, *stream, results, to, "results",
                                              ep.progress(*stream, true)),
        of_answers(ep, *stream, answers, back, "answers", ep.progress(*stream, true));
    of_answers.add_up_choices(ep, machine.backend, *stream, of_tokens);
    of_results.add_up(ep, machine.backend, *stream, of_tokens);
  }
  test::expect(scratch.top() == 0, "scratch is empty after the exchange");
  for (std::int64_t i = 0; i < to.numel(); ++i)
    outcome.sums.push_back(static_cast<double>(to.as<float>()[i]));
  for (std::int64_t i = 0; i < back.numel(); ++i)
    outcome.choices.push_back(static_cast<double>(back.as<float>()[i]));
  outcome.crowded = flag.as<float>()[0] != 0;
  return outcome;
}

std::vector<ExpertOutcome> on_all_ranks(std::int64_t slots, bool overlap) {
  std::vector<ExpertOutcome> outcomes(kRanks);
  parallel::LocalWorld world(kRanks);
  world.run([&](std::int64_t rank) {
    outcomes[static_cast<std::size_t>(rank)] = exchange(slots, overlap, rank, world);
  });
  return outcomes;
}

}  // namespace

TEST_CASE("tokens reach the ranks of their experts and results come back, gathered or in slots", "[expert]") {
  // No slots; as many as tokens; as few as the fullest rank needs of the tokens of any other.
  for (const auto& [slots, overlap] :
       {std::pair{0, false}, {0, true}, {40, false}, {31, false}, {31, true}}) {
    CAPTURE(slots, overlap);
    for (const ExpertOutcome& outcome : on_all_ranks(slots, overlap)) {
      CHECK(outcome.sums == outcome.expected_sums);
      CHECK(outcome.choices == outcome.expected_choices);
      CHECK_FALSE(outcome.crowded);
    }
  }
}

TEST_CASE("a rank whose tokens lack slots says so", "[expert]") {
  for (const ExpertOutcome& outcome : on_all_ranks(8, false)) {
    CHECK(outcome.crowded);
    CHECK(outcome.sums != outcome.expected_sums);
  }
}
