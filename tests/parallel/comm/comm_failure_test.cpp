// Failures of other ranks, with ranks as threads: disagreement, absence, aborts. Waiting takes no processor
// time.

#include <time.h>

#include <catch2/catch.hpp>
#include <mutex>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "tests/parallel/comm_support.h"

using namespace trainerd;
using namespace trainerd::parallel;
using namespace trainerd::test;

namespace {

// Runs `body` on every rank of a world; the CommError text that each rank saw, or "".
std::vector<std::string> errors_of(
    World& world, const std::function<void(std::int64_t, Communicator&, RankMachine&)>& body) {
  std::vector<std::string> texts(static_cast<std::size_t>(world.ranks()));
  world.run([&](std::int64_t rank) {
    RankMachine machine;
    const auto comm = world.communicator(rank, machine, all_ranks(world.ranks()), "dp");
    try {
      body(rank, *comm, machine);
    } catch (const base::CommError& error) {
      texts[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  return texts;
}

double thread_cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

TEST_CASE("ranks that call different operations all get an error that names both") {
  struct Case {
    std::int64_t numel;
    DType dtype;
    ReduceOp op;
    const char* label;
    bool gather;
    const char* named;
  };
  const auto other = GENERATE(
      Case{9, DType::f32, ReduceOp::sum, "gradients", false,
           "all_reduce (sum) \"gradients\" of 36 bytes fp32"},
      Case{16, DType::bf16, ReduceOp::sum, "gradients", false,
           "all_reduce (sum) \"gradients\" of 32 bytes bf16"},
      Case{8, DType::f32, ReduceOp::max, "gradients", false,
           "all_reduce (max) \"gradients\" of 32 bytes fp32"},
      Case{8, DType::f32, ReduceOp::sum, "loss", false, "all_reduce (sum) \"loss\" of 32 bytes fp32"},
      Case{8, DType::f32, ReduceOp::sum, "gradients", true, "all_gather \"gradients\" of 32 bytes fp32"});
  World world(3, {.deadline_seconds = 30});
  const auto texts = errors_of(world, [&](std::int64_t rank, Communicator& comm, RankMachine& m) {
    const bool odd = rank == 1;
    const HostTensor x(odd ? other.dtype : DType::f32, odd ? other.numel : 8);
    const HostTensor out(DType::f32, 24);
    comm.barrier(*m.stream, {.label = "start"})->wait(*m.stream), m.sync();
    if (odd && other.gather) {
      comm.all_gather(*m.stream, *x, *out, {.label = other.label})->wait(*m.stream), m.sync();
    } else {
      comm.all_reduce(*m.stream, *x, odd ? other.op : ReduceOp::sum,
                      {.label = odd ? other.label : "gradients"})
          ->wait(*m.stream),
          m.sync();
    }
  });
  for (const std::string& text : texts) {
    CHECK_THAT(text,
               Catch::Contains("all_reduce (sum) \"gradients\" of 32 bytes fp32 (number 2 of group dp)"));
    CHECK_THAT(text, Catch::Contains(other.named));
    CHECK_THAT(text, Catch::Contains("rank 1"));
  }
}

TEST_CASE("the deadline of the world ends a wait and names the label and the missing ranks") {
  World world(4, {.deadline_seconds = 0.2});
  const double begin = base::monotonic_seconds();
  const auto texts = errors_of(world, [&](std::int64_t rank, Communicator& comm, RankMachine& m) {
    const HostTensor x(DType::f32, 8);
    if (rank != 2)
      comm.all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "gradients"})->wait(*m.stream), m.sync();
  });
  CHECK(base::monotonic_seconds() - begin < 30);
  CHECK(texts[2].empty());
  for (const std::size_t rank : {0u, 1u, 3u}) {
    CHECK_THAT(texts[rank], Catch::Contains("\"gradients\""));
    CHECK_THAT(texts[rank], Catch::Contains("rank 2"));
  }
}

TEST_CASE("wait_host ends at its own deadline, for a background collective and for a message") {
  const bool message = GENERATE(false, true);
  World world(2, {.deadline_seconds = 60});
  const double begin = base::monotonic_seconds();
  const auto texts = errors_of(world, [&](std::int64_t rank, Communicator& comm, RankMachine& m) {
    const HostTensor x(DType::f32, 8);
    const Transfer receive{1, *x};
    if (rank == 1) return;
    const auto work = message ? comm.exchange(*m.stream, {}, {&receive, 1}, {.label = "activations"})
                              : comm.all_reduce(*m.stream, *x, ReduceOp::sum,
                                                {.label = "activations", .progress = Progress::background});
    work->wait_host(0.1);
  });
  CHECK(base::monotonic_seconds() - begin < 30);
  CHECK_THAT(texts[0], Catch::Contains("\"activations\""));
  CHECK_THAT(texts[0], Catch::Contains("rank 1"));
}

TEST_CASE("an abort by any rank ends the waits of all ranks in all groups at once") {
  enum class By { communicator, world };
  const By by = GENERATE(By::communicator, By::world);
  World world(6, {.deadline_seconds = 60});
  double aborted_at = 0;
  const auto texts = errors_of(world, [&](std::int64_t rank, Communicator& comm, RankMachine& m) {
    comm.barrier(*m.stream, {.label = "all here"})->wait(*m.stream), m.sync();
    if (rank == 5) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      aborted_at = base::monotonic_seconds();
      if (by == By::communicator) comm.abort();
      else world.abort("the test ends it");
      return;
    }
    // Pairs of ranks, and one that waits for a message, all without the aborting rank.
    const HostTensor x(DType::f32, 8);
    const Transfer receive{0, *x};
    if (rank == 4)
      comm.exchange(*m.stream, {}, {&receive, 1}, {.label = "never sent"})->wait(*m.stream), m.sync();
    const auto pair = world.communicator(rank, m, {rank / 2 * 2, rank / 2 * 2 + 1}, "pair");
    if (rank % 2 == 0) pair->barrier(*m.stream, {.label = "never met"})->wait(*m.stream), m.sync();
    if (rank % 2 == 1)
      comm.all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "never met", .progress = Progress::background})
          ->wait(*m.stream),
          m.sync();
  });
  CHECK(base::monotonic_seconds() - aborted_at < 30);
  for (std::size_t rank = 0; rank < 5; ++rank) {
    CHECK_THAT(texts[rank], Catch::Contains("\"never "));
    CHECK_THAT(texts[rank], Catch::Contains("waited for"));
    CHECK_THAT(texts[rank],
               Catch::Contains(by == By::world ? "the test ends it" : "rank 5 aborted group dp"));
  }
  CHECK(texts[5].empty());
}

TEST_CASE("nothing starts after an abort") {
  World world(2, {.deadline_seconds = 60});
  world.abort("enough");
  const auto texts = errors_of(world, [&](std::int64_t, Communicator& comm, RankMachine& m) {
    comm.barrier(*m.stream, {.label = "late"})->wait(*m.stream), m.sync();
  });
  for (const std::string& text : texts)
    CHECK_THAT(text, Catch::Contains("enough") && Catch::Contains("\"late\""));
}

TEST_CASE("a rank that throws ends the others, and its exception is reported") {
  World world(4, {.deadline_seconds = 60});
  const auto run = [&] {
    world.run([&](std::int64_t rank) {
      RankMachine m;
      const auto comm = world.communicator(rank, m, all_ranks(4), "all");
      if (rank == 3) throw base::data_error("shard 3 is unreadable");
      comm->barrier(*m.stream, {.label = "x"})->wait(*m.stream), m.sync();
    });
  };
  CHECK_THROWS_AS(run(), base::DataError);
}

TEST_CASE("a rank can make its communicator of a group only once") {
  World world(2);
  RankMachine m;
  const auto comm = world.communicator(0, m, {0, 1}, "dp");
  CHECK_THROWS_AS(world.communicator(0, m, {0, 1}, "dp"), std::logic_error);
  CHECK_NOTHROW(world.communicator(0, m, {0, 1}, "tp"));
  CHECK_THROWS_AS(world.communicator(0, m, {1}, "pp"), std::logic_error);
}

TEST_CASE("a rank that waits takes no processor time") {
  World world(2);
  double waited_cpu_seconds = 1;
  world.run([&](std::int64_t rank) {
    RankMachine m;
    const auto comm = world.communicator(rank, m, {0, 1}, "all");
    comm->barrier(*m.stream, {.label = "start"})->wait(*m.stream), m.sync();
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    const double before = thread_cpu_seconds();
    comm->barrier(*m.stream, {.label = "end"})->wait(*m.stream), m.sync();
    if (rank == 0) waited_cpu_seconds = thread_cpu_seconds() - before;
  });
  CHECK(waited_cpu_seconds < 0.04);  // a tenth of the wait; a spin takes all of it
}

TEST_CASE("the flight recorder holds the latest operations and their states") {
  std::array<FlightRecord, 4> ring{};
  FlightRecorder recorder(ring);
  World world(2, {.deadline_seconds = 0.2});
  world.run([&](std::int64_t rank) {
    RankMachine m;
    const auto comm = world.communicator(rank, m, {0, 1}, "dp", rank == 0 ? &recorder : nullptr);
    const HostTensor x(DType::bf16, 100);
    for (int i = 0; i < 5; ++i)
      comm->all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "gradients"})->wait(*m.stream), m.sync();
    try {
      if (rank == 0) comm->barrier(*m.stream, {.label = "alone"})->wait(*m.stream), m.sync();
    } catch (const base::CommError&) {}
  });
  // Operations 3 to 6 are left; the sixth has replaced the second.
  const FlightRecord& last = ring[1];
  CHECK(last.order == 6);
  CHECK(std::string(last.op.data()) == "barrier");
  CHECK(std::string(last.label.data()) == "alone");
  CHECK(last.state == FlightState::started);
  CHECK(last.done_seconds == 0);
  const FlightRecord& fifth = ring[0];
  CHECK(fifth.order == 5);
  CHECK(fifth.sequence == 5);
  CHECK(std::string(fifth.op.data()) == "all_reduce");
  CHECK(std::string(fifth.group.data()) == "dp");
  CHECK(fifth.bytes == 200);
  CHECK(fifth.dtype == DType::bf16);
  CHECK(fifth.group_size == 2);
  CHECK(fifth.state == FlightState::done);
  CHECK(fifth.enqueued_seconds <= fifth.started_seconds);
  CHECK(fifth.started_seconds <= fifth.done_seconds);
  CHECK(fifth.done_seconds <= last.enqueued_seconds);
  CHECK(ring[2].order == 3);
  CHECK(ring[3].order == 4);
}
