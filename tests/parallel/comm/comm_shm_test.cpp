// Communicators between real processes over one shared-memory segment. As with an agent, a dead process ends
// the world.

#include <catch2/catch.hpp>
#include <functional>
#include <thread>

#include "kernels/base/error.h"
#include "parallel/comm/shm/shm_world.h"
#include "tests/parallel/comm/comm_workers.h"
#include "tests/parallel/comm_program.h"

using namespace trainerd;
using namespace trainerd::parallel;
using namespace trainerd::test;

namespace {

ShmLayout layout_of(const std::vector<ProgramGroup>& groups, std::int64_t ranks) {
  ShmLayout layout{.ranks = ranks, .groups = {}};
  for (const ProgramGroup& group : groups)
    layout.groups.push_back(
        {.name = group.name, .ranks = group.ranks, .chunk_bytes = 8192, .ring_bytes = 8192});
  return layout;
}

/// Workers over a segment, and the agent's part of the work.
struct ShmWorkers {
  ShmWorkers(const ShmLayout& layout, const ShmOptions& options,
             const std::function<void(std::int64_t, ShmWorld&)>& body)
      : segment(make_shm_segment(layout)),
        workers(
            layout.ranks,
            [&](std::int64_t rank) {
              ShmWorld world(base::Segment::attach(base::UniqueFd(::dup(segment.fd()))), layout, rank,
                             options);
              body(rank, world);
            },
            [this](std::size_t rank) {
              abort_shm(segment, "the worker of rank " + std::to_string(rank) + " was killed");
            }) {}
  base::Segment segment;
  Workers workers;
};

void run_on(std::int64_t rank, ShmWorld& world, const std::vector<ProgramGroup>& groups, std::uint64_t seed,
            int steps) {
  run_program(rank, groups, seed, steps, [&](RankMachine& machine, const ProgramGroup& group) {
    return world.communicator(machine.backend, group.ranks, group.name);
  });
}

}  // namespace

TEST_CASE("random programs of collectives among processes give every rank the right results") {
  const std::int64_t ranks = GENERATE(2, 3, 4);
  const double spin_seconds = GENERATE(0.0, 2e-5);
  const std::vector<ProgramGroup> groups = program_groups(ranks);
  ShmWorkers shm(layout_of(groups, ranks), {.deadline_seconds = 60, .spin_seconds = spin_seconds},
                 [&](std::int64_t rank, ShmWorld& world) { run_on(rank, world, groups, 77, 100); });
  Workers& workers = shm.workers;
  REQUIRE(workers.wait_all(60));
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
    INFO(workers.text(rank));
    CHECK(workers.code(rank) == 0);
  }
}

TEST_CASE("if a process is killed at any moment, all others stop with a CommError that says so") {
  constexpr std::int64_t kRanks = 4;
  const std::vector<ProgramGroup> groups = program_groups(kRanks);
  std::mt19937_64 random(5);
  for (int round = 0; round < 12; ++round) {
    ShmWorkers shm(
        layout_of(groups, kRanks), {.deadline_seconds = 60}, [&](std::int64_t rank, ShmWorld& world) {
          run_on(rank, world, groups, static_cast<std::uint64_t>(round),
                 100'000'000);  // runs until killed
        });
    Workers& workers = shm.workers;
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + random() % 60000));
    const std::size_t victim = random() % kRanks;
    workers.signal(victim, SIGKILL);
    const double begin = base::monotonic_seconds();
    REQUIRE(workers.wait_all(30));
    INFO("round " << round << ", after " << base::monotonic_seconds() - begin << " s");
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) {
        CHECK(workers.killed(rank));
        continue;
      }
      CHECK(workers.code(rank) == kCommExit);
      CHECK_THAT(workers.text(rank),
                 Catch::Contains("the worker of rank " + std::to_string(victim) + " was killed"));
    }
  }
}

TEST_CASE("if a process hangs, the others name it at their deadline") {
  constexpr std::size_t kRanks = 3, kVictim = 1;
  const std::vector<ProgramGroup> groups{{"all", all_ranks(kRanks)}};
  ShmWorkers shm(layout_of(groups, kRanks), {.deadline_seconds = 0.5}, [&](std::int64_t, ShmWorld& world) {
    RankMachine machine;
    const auto comm = world.communicator(machine.backend, all_ranks(kRanks), "all");
    for (;;) comm->barrier(*machine.stream, {.label = "beat"})->wait(*machine.stream);
  });
  Workers& workers = shm.workers;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  workers.signal(kVictim, SIGSTOP);
  REQUIRE(workers.wait_all(5, kVictim));
  for (const std::size_t rank : {0u, 2u}) {
    CHECK(workers.code(rank) == kCommExit);
    CHECK_THAT(workers.text(rank), Catch::Contains("\"beat\"") && Catch::Contains("rank 1"));
  }
}

TEST_CASE("a segment of another layout is refused") {
  const ShmLayout made = layout_of(program_groups(4), 4);
  const base::Segment segment = make_shm_segment(made);
  const auto join = [&](const ShmLayout& layout) {
    return ShmWorld(base::Segment::attach(base::UniqueFd(::dup(segment.fd()))), layout, 0);
  };
  CHECK_NOTHROW(join(made));
  ShmLayout renamed = made;
  renamed.groups[0].name = "some";
  CHECK_THROWS_AS(join(renamed), base::CommError);
  ShmLayout smaller = made;
  smaller.groups.pop_back();
  CHECK_THROWS_AS(join(smaller), base::CommError);
}
