// NCCL communicators over stand-ins for NCCL and the CUDA runtime: splits, order on streams, errors,
// deadlines, the end of a world.

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "kernels/base/clock.h"
#include "nccl.h"
#include "parallel/comm/local_communicator.h"
#include "parallel/comm/staged/staged_communicator.h"
#include "tests/parallel/comm_program.h"
#include "tests/parallel/nccl/nccl_ranks.h"
#include "tests/parallel/nccl/stand_in_backend.h"

using namespace trainerd;
using namespace trainerd::parallel;
using namespace trainerd::test;

namespace {

std::vector<NcclGroup> split_groups(std::int64_t ranks) {
  std::vector<NcclGroup> groups;
  for (const ProgramGroup& g : program_groups(ranks)) groups.push_back({g.name, g.ranks});
  return groups;
}

/// A world whose ranks are threads.
struct Ranks {
  explicit Ranks(std::int64_t ranks) : count(ranks), id(nccl_unique_id()) {}
  std::int64_t count;
  std::string id;
  End end;
  MapStore store;

  NcclOptions options(std::int64_t rank) {
    NcclOptions o = nccl_options(rank, count, id, end, &store);
    o.groups = {{"dp", all_ranks(count)}};
    return o;
  }
  /// The text of each rank's CommError, or "".
  std::vector<std::string> errors(
      const std::function<void(std::int64_t, NcclWorld&, Communicator&, RankMachine&)>& body,
      const std::function<void(NcclOptions&)>& change = {}) {
    std::vector<std::string> texts(static_cast<std::size_t>(count));
    run_ranks(count, end, [&](std::int64_t rank) {
      NcclOptions o = options(rank);
      if (change) change(o);
      try {
        const auto world = make_nccl_world(o);
        RankMachine machine;
        const auto comm = world->communicator(machine.backend, all_ranks(count), "dp");
        body(rank, *world, *comm, machine);
      } catch (const base::CommError& error) {
        texts[static_cast<std::size_t>(rank)] = error.what();
      }
    });
    CHECK(std::string(nccl_misuse()).empty());
    CHECK(nccl_communicators_left() == 0);
    return texts;
  }
};

}  // namespace

TEST_CASE("random programs over groups that are split from the world give every rank the right results",
          "[nccl]") {
  const std::int64_t ranks = GENERATE(2, 3, 6, 8);
  const std::vector<ProgramGroup> groups = program_groups(ranks);
  Ranks world(ranks);
  run_ranks(ranks, world.end, [&](std::int64_t rank) {
    NcclOptions o = world.options(rank);
    o.groups = split_groups(ranks);
    const auto mine = make_nccl_world(o);
    run_program(rank, groups, 5, 80, [&](RankMachine& machine, const ProgramGroup& group) {
      return group.ranks.size() == 1 ? make_single_rank(machine.backend)
                                     : mine->communicator(machine.backend, group.ranks, group.name);
    });
  });
  CHECK(std::string(nccl_misuse()).empty());
  CHECK(nccl_communicators_left() == 0);
}

TEST_CASE("an operation runs after earlier work on the caller's stream, and before later work that awaits it",
          "[nccl]") {
  Ranks world(2);
  const auto texts = world.errors([&](std::int64_t rank, NcclWorld&, Communicator& comm, RankMachine& m) {
    const HostTensor early(DType::f32, Values(64, 0.0)),
        late(DType::f32, Values(64, static_cast<double>(rank + 1)));
    const HostTensor out(DType::f32, 64);
    for (int i = 0; i < 20; ++i) {
      m.backend.copy(*m.stream, *out, *early);
      delay(*m.stream, rank == 0 ? 0.003 : 0.0);
      m.backend.copy(*m.stream, *late, *early);
      const auto work = comm.all_reduce(*m.stream, *early, ReduceOp::sum, {.label = "x"});
      work->wait(*m.stream);
      m.backend.copy(*m.stream, *early, *out);
      m.sync();
      expect(out.values() == Values(64, 3.0), "round " + std::to_string(i));
    }
  });
  CHECK(texts == std::vector<std::string>(2));
}

TEST_CASE("a call returns before its peers have called", "[nccl]") {
  Ranks world(2);
  std::atomic<bool> returned = false;
  const auto texts = world.errors([&](std::int64_t rank, NcclWorld&, Communicator& comm, RankMachine& m) {
    const HostTensor x(DType::i32, Values(8, 1.0));
    if (rank == 1)
      while (!returned) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto work = comm.all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "x"});
    returned = true;
    work->wait_host(30);
    expect(get(*x, 7) == 2, "the sum");
  });
  CHECK(texts == std::vector<std::string>(2));
}

TEST_CASE("an operation that NCCL starts at once does not make its caller sleep", "[nccl]") {
  Ranks world(2);
  // The stand-in is "in progress" three times. A sleep of 20 us really takes about 60 us.
  std::vector<double> quickest(2, 1);
  world.errors([&](std::int64_t rank, NcclWorld&, Communicator& comm, RankMachine& m) {
    const HostTensor x(DType::f32, Values(8, 1.0));
    for (int i = 0; i < 1000; ++i) {
      const double begin = base::monotonic_seconds();
      const auto work = comm.all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "quick"});
      double& least = quickest[static_cast<std::size_t>(rank)];
      least = std::min(least, base::monotonic_seconds() - begin);
      work->wait_host(60);
    }
  });
  for (const double seconds : quickest) CHECK(seconds < 100e-6);
}

TEST_CASE("the watchdog ends a world at its deadline and names the operation and the missing ranks",
          "[nccl]") {
  Ranks world(4);
  const double begin = base::monotonic_seconds();
  const auto texts = world.errors(
      [&](std::int64_t rank, NcclWorld& mine, Communicator& comm, RankMachine& m) {
        const HostTensor x(DType::f32, 8);
        comm.barrier(*m.stream, {.label = "start"})->wait(*m.stream), m.sync();
        if (rank == 2) {
          while (world.end.why().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return;
        }
        comm.all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "gradients"})->wait(*m.stream);
        m.sync();  // the host's wait for the device ends
        mine.throw_if_ended();
      },
      [](NcclOptions& o) { o.deadline_seconds = 0.4; });
  CHECK(base::monotonic_seconds() - begin < 30);
  CHECK(texts[2].empty());
  for (const std::size_t rank : {0u, 1u, 3u}) {
    CHECK_THAT(texts[rank],
               Catch::Contains("all_reduce (sum) \"gradients\" of 32 bytes fp32 (number 2 of group dp)"));
    CHECK_THAT(texts[rank], Catch::Contains("waiting for rank 2;"));
  }
}

TEST_CASE("a deadline counts from an operation's turn on the device", "[nccl]") {
  Ranks world(2);
  const auto texts = world.errors(
      [&](std::int64_t, NcclWorld&, Communicator& comm, RankMachine& m) {
        const HostTensor x(DType::f32, 8);
        delay(*m.stream, 0.6);
        comm.all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "x"})->wait(*m.stream), m.sync();
      },
      [](NcclOptions& o) { o.deadline_seconds = 0.3; });
  CHECK(texts == std::vector<std::string>(2));
}

TEST_CASE("wait_host ends at its own deadline, and a message names its sender", "[nccl]") {
  Ranks world(3);
  const double begin = base::monotonic_seconds();
  const auto texts = world.errors([&](std::int64_t rank, NcclWorld&, Communicator& comm, RankMachine& m) {
    const HostTensor x(DType::f32, 8);
    const Transfer receive{1, *x};
    if (rank == 0) comm.exchange(*m.stream, {}, {&receive, 1}, {.label = "activations"})->wait_host(0.2);
    else
      while (world.end.why().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  CHECK(base::monotonic_seconds() - begin < 30);
  CHECK_THAT(texts[0], Catch::Contains("exchange \"activations\"") && Catch::Contains("waiting for rank 1;"));
}

TEST_CASE("an abort from another thread ends the waits of the host and of the device", "[nccl]") {
  Ranks world(3);
  const auto texts =
      world.errors([&](std::int64_t rank, NcclWorld& mine, Communicator& comm, RankMachine& m) {
        const HostTensor x(DType::f32, 8);
        if (rank == 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          return comm.abort();
        }
        const auto work = comm.all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "never met"});
        if (rank == 0) work->wait_host(60);
        work->wait(*m.stream);
        m.sync();
        mine.throw_if_ended();
      });
  for (const std::size_t rank : {0u, 1u}) CHECK_THAT(texts[rank], Catch::Contains("rank 2 aborted group dp"));
  CHECK_THAT(texts[0], Catch::Contains("\"never met\""));
}

TEST_CASE("an asynchronous error of NCCL ends the world with its text", "[nccl]") {
  Ranks world(2);
  const auto texts = world.errors([&](std::int64_t rank, NcclWorld&, Communicator& comm, RankMachine& m) {
    const HostTensor x(DType::f32, 8);
    if (rank == 0) {
      const auto work = comm.all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "gradients"});
      break_nccl(0, ncclRemoteError);
      work->wait_host(60);
    } else {
      while (world.end.why().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  break_nccl(0, ncclSuccess);
  CHECK_THAT(texts[0], Catch::Contains("network error") && Catch::Contains("the stand-in's words") &&
                           Catch::Contains("\"gradients\""));
}

TEST_CASE("nothing starts after the end of a world, of which every rank learns", "[nccl]") {
  Ranks world(2);
  std::atomic<int> met{0};
  const auto texts = world.errors([&](std::int64_t rank, NcclWorld&, Communicator& comm, RankMachine& m) {
    comm.barrier(*m.stream, {.label = "all here"})->wait_host(60);
    ++met;
    if (rank == 0) {
      while (met < 2) std::this_thread::yield();
      world.end.report("the agent says so");
    }
    for (;;) comm.barrier(*m.stream, {.label = "late"})->wait(*m.stream);
  });
  for (const std::string& text : texts)
    CHECK_THAT(text, Catch::Contains("\"late\"") && Catch::Contains("the agent says so"));
}

TEST_CASE(
    "a communicator destroyed with an operation under way gives up in time and ends its peers' operations",
    "[nccl]") {
  Ranks world(2);
  const double begin = base::monotonic_seconds();
  const auto texts = world.errors([&](std::int64_t rank, NcclWorld&, Communicator& comm, RankMachine& m) {
    static const HostTensor x(DType::f32, 8);
    if (rank == 0) comm.all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "x"});
    else
      while (world.end.why().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  CHECK(base::monotonic_seconds() - begin < 40);
  CHECK_THAT(world.end.why(), Catch::Contains("rank 0 left group dp with operations under way"));
}

TEST_CASE("a rank that is missing at the start, or shares another's device, is an error", "[nccl]") {
  Ranks world(2);
  End end;
  NcclOptions alone = nccl_options(0, 2, world.id, end, nullptr);
  alone.start_seconds = 0.2;
  CHECK_THROWS_WITH(make_nccl_world(alone), Catch::Contains("the 2 ranks did not meet"));
  NcclOptions same = nccl_options(1, 2, world.id, end, nullptr);
  same.device = 0;
  CHECK_THROWS_AS(make_nccl_world(same), base::CommError);
  CHECK(nccl_communicators_left() == 0);
}

TEST_CASE("operations that NCCL lacks are refused, and a communicator is made only once", "[nccl]") {
  Ranks world(2);
  const auto texts = world.errors([&](std::int64_t, NcclWorld& mine, Communicator& comm, RankMachine& m) {
    const HostTensor x(DType::f32, 8), sums(DType::f64, Values(8, 1.0));
    const auto refused = [&](const auto& act) {
      try {
        act();
      } catch (const std::logic_error&) {
        return true;
      }
      return false;
    };
    expect(refused([&] {
             comm.all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "x", .accumulate = DType::f64});
           }),
           "accumulation");
    expect(refused([&] { comm.all_to_all(*m.stream, *x, *x, {.label = "x"}); }), "in place");
    expect(refused([&] { mine.communicator(m.backend, {0, 1}, "dp"); }), "a second time");
    expect(refused([&] { mine.communicator(m.backend, {0, 1}, "tp"); }), "an unknown group");
    comm.all_reduce(*m.stream, *sums, ReduceOp::sum, {.label = "x", .accumulate = DType::f64})->wait_host(30);
    expect(get(*sums, 0) == 2, "fp64 in fp64");
  });
  CHECK(texts == std::vector<std::string>(2));
}

TEST_CASE("the flight recorder follows operations to the device and back", "[nccl]") {
  std::array<FlightRecord, 4> ring{};
  FlightRecorder recorder(ring);
  Ranks world(2);
  run_ranks(2, world.end, [&](std::int64_t rank) {
    const auto mine = make_nccl_world(world.options(rank));
    RankMachine m;
    const auto comm = mine->communicator(m.backend, {0, 1}, "dp", rank == 0 ? &recorder : nullptr);
    const HostTensor x(DType::bf16, 100);
    comm->all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "gradients"})->wait(*m.stream), m.sync();
    comm->barrier(*m.stream, {.label = "last"})->wait(*m.stream), m.sync();
  });
  CHECK(std::string(ring[0].op.data()) == "all_reduce");
  CHECK(std::string(ring[0].group.data()) == "dp");
  CHECK(std::string(ring[0].label.data()) == "gradients");
  CHECK(ring[0].bytes == 200);
  CHECK(ring[0].group_size == 2);
  for (const std::size_t i : {0u, 1u}) {
    CHECK(ring[i].order == i + 1);
    CHECK(ring[i].state == FlightState::done);
    CHECK(ring[i].enqueued_seconds <= ring[i].started_seconds);
    CHECK(ring[i].started_seconds <= ring[i].done_seconds);
  }
}

TEST_CASE("staged communicators keep the order of an asynchronous device", "[staged]") {
  const std::int64_t ranks = GENERATE(2, 4);
  const std::vector<ProgramGroup> groups = program_groups(ranks);
  LocalWorld world(ranks);
  world.run([&](std::int64_t rank) {
    base::ThreadPool pool(1);
    kernels::CpuBackend host(kernels::detect_cpu(1), pool);
    run_program(rank, groups, 21, 60, [&](RankMachine& machine, const ProgramGroup& group) {
      return make_staged(world.communicator(rank, host, group.ranks, group.name), machine.backend,
                         {.slot_bytes = 4096});
    });
    RankMachine m;
    const auto comm = make_staged(world.communicator(rank, host, all_ranks(ranks), "late"), m.backend,
                                  {.slot_bytes = 4096});
    const HostTensor early(DType::f32, Values(5000, 0.0)), late(DType::f32, Values(5000, 1.0)),
        out(DType::f32, 5000);
    for (int i = 0; i < 10; ++i) {
      m.backend.copy(*m.stream, *out, *early);
      delay(*m.stream, rank == 0 ? 0.003 : 0.0);
      m.backend.copy(*m.stream, *late, *early);
      const auto work = comm->all_reduce(*m.stream, *early, ReduceOp::sum, {.label = "x"});
      work->wait(*m.stream);
      m.backend.copy(*m.stream, *early, *out);
      m.sync();
      expect(out.values() == Values(5000, static_cast<double>(ranks)), "round " + std::to_string(i));
    }
  });
  SUCCEED("in order");
}
