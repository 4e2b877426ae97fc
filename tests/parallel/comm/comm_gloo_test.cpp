// Communicators between real processes over TCP, with a rendezvous through a directory.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "kernels/base/error.h"
#include "parallel/comm/gloo/gloo_world.h"
#include "tests/parallel/comm/comm_workers.h"
#include "tests/parallel/comm_program.h"
#include "tests/parallel/grad_reduction.h"

using namespace trainerd;
using namespace trainerd::parallel;
using namespace trainerd::test;

namespace {

/// A temporary directory for a rendezvous.
struct Meeting {
  Meeting() {
    std::string pattern = (std::filesystem::temp_directory_path() / "trainerd-meeting-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Meeting() { std::filesystem::remove_all(path); }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  std::string path;
};

/// Workers over TCP, with small chunks, so that collectives take several steps.
struct GlooWorkers {
  GlooWorkers(std::int64_t ranks, double deadline_seconds,
              const std::function<void(std::int64_t, GlooWorld&)>& body)
      : workers(ranks, [&](std::int64_t rank) {
          ::signal(SIGPIPE, SIG_IGN);
          FileStore store(meeting.path);
          GlooOptions options;
          options.deadline_seconds = deadline_seconds;
          options.chunk_bytes = 4096;
          GlooWorld world(store, rank, options);
          body(rank, world);
        }) {}
  Meeting meeting;
  Workers workers;
};

void run_on(std::int64_t rank, GlooWorld& world, const std::vector<ProgramGroup>& groups, std::uint64_t seed,
            int steps) {
  run_program(rank, groups, seed, steps, [&](RankMachine& machine, const ProgramGroup& group) {
    return world.communicator(machine.backend, group.ranks, group.name);
  });
}

}  // namespace

TEST_CASE("random programs of collectives over TCP give every rank the right results") {
  const std::int64_t ranks = GENERATE(2, 3, 4);
  const std::vector<ProgramGroup> groups = program_groups(ranks);
  GlooWorkers gloo(ranks, 60,
                   [&](std::int64_t rank, GlooWorld& world) { run_on(rank, world, groups, 77, 60); });
  REQUIRE(gloo.workers.wait_all(100));
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
    INFO(gloo.workers.text(rank));
    CHECK(gloo.workers.code(rank) == 0);
  }
}

TEST_CASE(
    "gradients reduced over TCP are the fp32 sums in rank order of the transferred values, bit for bit") {
  const ReductionCase c = GENERATE(ReductionCase{.inner = 3, .microbatches = 2},
                                   ReductionCase{.inner = 2, .outer = 2, .sharded = true, .microbatches = 2},
                                   ReductionCase{.inner = 2,
                                                 .outer = 2,
                                                 .replicas = true,
                                                 .sharded = true,
                                                 .progress = Progress::caller,
                                                 .microbatches = 2});
  CAPTURE(text_of(c));
  GlooWorkers gloo(c.ranks(), 60, [&](std::int64_t rank, GlooWorld& world) {
    RankMachine machine;
    check_reductions(c, rank, machine, [&](const std::vector<std::int64_t>& ranks, const std::string& name) {
      return world.communicator(machine.backend, ranks, name);
    });
  });
  REQUIRE(gloo.workers.wait_all(100));
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(c.ranks()); ++rank) {
    INFO(gloo.workers.text(rank));
    CHECK(gloo.workers.code(rank) == 0);
  }
}

TEST_CASE("over TCP other ranks detect a killed process at once") {
  constexpr std::int64_t kRanks = 4;
  const std::vector<ProgramGroup> groups = program_groups(kRanks);
  std::mt19937_64 random(6);
  for (int round = 0; round < 4; ++round) {
    GlooWorkers gloo(kRanks, 60, [&](std::int64_t rank, GlooWorld& world) {
      run_on(rank, world, groups, static_cast<std::uint64_t>(round), 100'000'000);  // runs until killed
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(300 + random() % 200));
    const std::size_t victim = random() % kRanks;
    gloo.workers.signal(victim, SIGKILL);
    REQUIRE(gloo.workers.wait_all(30));
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      INFO("victim " << victim << ", rank " << rank << ", code " << gloo.workers.code(rank) << " "
                     << gloo.workers.text(rank));
      CHECK((rank == victim ? gloo.workers.killed(rank) : gloo.workers.code(rank) == kCommExit));
    }
  }
}

TEST_CASE("over TCP a hanging rank is named at the deadline, and one that calls something else at once") {
  const bool hangs = GENERATE(true, false);
  GlooWorkers gloo(3, hangs ? 0.5 : 60, [&](std::int64_t rank, GlooWorld& world) {
    RankMachine machine;
    const auto comm = world.communicator(machine.backend, all_ranks(3), "dp");
    const HostTensor x(DType::f32, 8);
    comm->all_reduce(*machine.stream, *x, ReduceOp::sum, {.label = "gradients"})->wait(*machine.stream);
    if (rank == 1 && hangs) std::this_thread::sleep_for(std::chrono::seconds(20));
    const char* label = rank == 1 ? "loss" : "gradients";
    comm->all_reduce(*machine.stream, *x, ReduceOp::sum, {.label = label})->wait(*machine.stream);
  });
  REQUIRE(gloo.workers.wait_all(hangs ? 15 : 30, hangs ? 1 : static_cast<std::size_t>(-1)));
  for (const std::size_t rank : {0u, 2u}) {
    CHECK(gloo.workers.code(rank) == kCommExit);
    CHECK_THAT(gloo.workers.text(rank), Catch::Contains("\"gradients\""));
    if (!hangs) CHECK_THAT(gloo.workers.text(rank), Catch::Contains("different operations"));
  }
  CHECK_THAT(gloo.workers.text(0), Catch::Contains("rank 1"));
}

TEST_CASE("ranks missing at the rendezvous are named") {
  const Meeting meeting;
  FileStore store(meeting.path);
  store.set("dp-0-1-2/here/1", "here");
  std::string text;
  try {
    meet(store, "dp-0-1-2", 0, 3, 0.1);
  } catch (const base::CommError& error) {
    text = error.what();
  }
  CHECK_THAT(text, Catch::Contains("in 0.1") && Catch::Contains(": 2;"));
}

TEST_CASE("a store returns the value that was set, under any key") {
  const Meeting meeting;
  FileStore store(meeting.path);
  const std::string value("a\0b\n", 4);
  CHECK(!store.get("tp/0/../1").has_value());
  store.set("tp/0/../1", value);
  store.set("tp%2f0", "other");
  CHECK(store.get("tp/0/../1") == value);
  CHECK(store.get("tp%2f0") == "other");
  CHECK_THROWS_AS(wait_for(store, "never", 0.05), base::CommError);
  FileStore nowhere(meeting.path + "/none");
  CHECK_THROWS_AS(nowhere.set("key", "value"), base::CommError);
}
