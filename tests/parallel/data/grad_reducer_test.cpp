// Sums of gradients over data-parallel ranks, bit for bit.

#include <catch2/catch.hpp>
#include <random>
#include <utility>

#include "parallel/data/staging_ring.h"
#include "tests/full.h"
#include "tests/parallel/grad_reduction.h"

using namespace trainerd;
using namespace trainerd::test;
using parallel::Progress;

namespace {

void check_on_all_ranks(const ReductionCase& c) {
  CAPTURE(text_of(c));
  World world(c.ranks());
  CHECK_NOTHROW(world.run([&](std::int64_t rank) {
    RankMachine machine;
    check_reductions(c, rank, machine, [&](const std::vector<std::int64_t>& ranks, const std::string& name) {
      return world.communicator(rank, machine, ranks, name);
    });
  }));
}

}  // namespace

TEST_CASE("reduced gradients are the fp32 sums in rank order of the transferred values, bit for bit",
          "[reduction]") {
  std::mt19937 draw(11);  // a random quarter of the cases, all in full runs
  std::size_t turn = 0;
  using parallel::GradDtypes;
  for (const GradDtypes& dtypes : {GradDtypes{DType::f32, DType::bf16}, GradDtypes{DType::f32, DType::f32},
                                   GradDtypes{DType::bf16, DType::bf16}, GradDtypes{DType::bf16, DType::f32}})
    for (const Progress progress : {Progress::background, Progress::caller})
      for (const auto& [inner, outer] :
           {std::pair<std::int64_t, std::int64_t>{2, 1}, {3, 1}, {5, 1}, {2, 2}, {2, 3}, {3, 2}})
        for (const bool replicas : {false, true})
          for (const bool sharded : {false, true}) {
            if (replicas && outer == 1) continue;
            if ((draw() % 4 != 0 && !runs_full()) || !in_slice(turn++, 6)) continue;
            check_on_all_ranks({.inner = inner,
                                .outer = outer,
                                .replicas = replicas,
                                .sharded = sharded,
                                .progress = progress,
                                .dtypes = dtypes,
                                .microbatches = 2});
          }
}

TEST_CASE("buckets of a few elements and of whole units give the same sums as all others", "[reduction]") {
  for (const std::int64_t elements : {1, 1 << 20})
    for (const bool sharded : {false, true}) {
      check_on_all_ranks({.inner = 4, .sharded = sharded, .microbatches = 2, .bucket_elements = elements});
      check_on_all_ranks({.inner = 2,
                          .outer = 2,
                          .replicas = true,
                          .sharded = sharded,
                          .microbatches = 2,
                          .bucket_elements = elements});
    }
}

TEST_CASE("one rank's gradients are not rounded", "[reduction]") {
  check_on_all_ranks({.inner = 1, .microbatches = 2});
}

TEST_CASE("allocated runs of a staging ring do not overlap", "[reduction]") {
  constexpr std::int64_t kElements = 64 * 16;
  kernels::Arena arena = kernels::Arena::dry("staging");
  parallel::StagingRing ring(DType::bf16, kElements, parallel::StagingRing::Staged::both, arena);
  CHECK(arena.top() == 2 * 2 * kElements);
  struct Held {
    parallel::StagingRing::Run run;
    std::int64_t begin, end;
  };
  std::vector<Held> held;
  std::mt19937_64 random(3);
  const std::byte* base = arena.base();
  std::int64_t refused = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    const std::int64_t elements = 64 * (1 + static_cast<std::int64_t>(random() % 16));
    if (const auto run = ring.take(elements)) {
      const std::int64_t begin = (run->sent.data - base) / 2;
      REQUIRE(run->sent.numel() == elements);
      REQUIRE(run->received.numel() == elements);
      REQUIRE((begin >= 0 && begin + elements <= kElements));
      for (const Held& other : held) REQUIRE((begin + elements <= other.begin || other.end <= begin));
      held.push_back({*run, begin, begin + elements});
    } else {
      REQUIRE(!held.empty());
      ++refused;
    }
    // Usually the oldest one, sometimes another.
    while (!held.empty() && random() % 3 != 0) {
      const auto at =
          held.begin() + (random() % 8 == 0 ? static_cast<std::ptrdiff_t>(random() % held.size()) : 0);
      ring.give_back(at->run);
      held.erase(at);
    }
  }
  CHECK(refused > 100);
  CHECK_THROWS_AS(ring.take(kElements + 64), std::logic_error);
}
