// Results of the collectives with ranks as threads: every dtype, sizes of zero, one and many steps, with a
// partial last step.

#include <catch2/catch.hpp>
#include <limits>
#include <thread>

#include "tests/parallel/comm_program.h"
#include "tests/parallel/comm_support.h"

using namespace trainerd;
using namespace trainerd::parallel;
using namespace trainerd::test;

namespace {

// Small chunks: a few thousand elements need several.
constexpr LocalOptions kSmallChunks{.deadline_seconds = 60, .chunk_bytes = 4096, .ring_bytes = 1024};

using RankBody = std::function<void(Communicator&, RankMachine&)>;

void on_all_ranks(std::int64_t ranks, const RankBody& body, const LocalOptions& options = kSmallChunks) {
  World world(ranks, options);
  world.run([&](std::int64_t rank) {
    RankMachine machine;
    const auto comm = world.communicator(rank, machine, all_ranks(ranks), "all");
    body(*comm, machine);
  });
}

bool same_bytes(const HostTensor& a, const HostTensor& b) {
  return (*a).bytes() == (*b).bytes() &&
         std::memcmp((*a).data, (*b).data, static_cast<std::size_t>((*a).bytes())) == 0;
}

}  // namespace

TEST_CASE("all_reduce adds in rank order, accumulating bf16 in fp32, and every rank gets the same bits") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f64, DType::i32, DType::f16);
  const std::int64_t ranks = GENERATE(1, 2, 3, 4, 16);
  for (const std::int64_t numel : {0, 1, 7, 1000, 4097, 30011})
    on_all_ranks(ranks, [&](Communicator& comm, RankMachine& m) {
      const HostTensor x(dtype, values_of(dtype, 1, comm.rank(), numel));
      comm.all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "sum"})->wait(*m.stream), m.sync();
      for (std::int64_t i = 0; i < numel; ++i)
        expect(get(*x, i) == sum_of(dtype, 1, all_ranks(ranks), i), "element " + std::to_string(i));
    });
}

TEST_CASE("fp32 summands may be accumulated in fp64", "[engine]") {
  // 1 + 2^-30 - 1: lost in fp32, kept in fp64.
  on_all_ranks(3, [](Communicator& comm, RankMachine& m) {
    const std::array values{1.0, std::ldexp(1.0, -30), -1.0};
    const HostTensor narrow(DType::f32, Values(1, values[static_cast<std::size_t>(comm.rank())]));
    const HostTensor wide(DType::f32, Values(1, values[static_cast<std::size_t>(comm.rank())]));
    comm.all_reduce(*m.stream, *narrow, ReduceOp::sum, {.label = "x"})->wait(*m.stream), m.sync();
    comm.all_reduce(*m.stream, *wide, ReduceOp::sum, {.label = "x", .accumulate = DType::f64})
        ->wait(*m.stream),
        m.sync();
    expect(get(*narrow, 0) == 0, "fp32");
    expect(get(*wide, 0) == std::ldexp(1.0, -30), "fp64");
  });
}

TEST_CASE("the maximum is over all ranks and keeps a NaN", "[engine]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f64, DType::i32, DType::f16);
  const std::int64_t numel = GENERATE(5, 9001);
  on_all_ranks(4, [&](Communicator& comm, RankMachine& m) {
    const HostTensor x(dtype, values_of(dtype, 2, comm.rank(), numel));
    if (dtype != DType::i32 && comm.rank() == 2) put(*x, 3, std::numeric_limits<double>::quiet_NaN());
    comm.all_reduce(*m.stream, *x, ReduceOp::max, {.label = "max"})->wait(*m.stream), m.sync();
    for (std::int64_t i = 0; i < numel; ++i)
      if (dtype != DType::i32 && i == 3) expect(std::isnan(get(*x, i)), "the NaN");
      else expect(get(*x, i) == max_of(dtype, 2, all_ranks(4), i), "element " + std::to_string(i));
  });
}

TEST_CASE("all_reduce has the bits of reduce_scatter and all_gather", "[engine]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f16);
  const std::int64_t ranks = GENERATE(2, 3, 8), part = GENERATE(1, 333, 5000);
  on_all_ranks(ranks, [&](Communicator& comm, RankMachine& m) {
    const Values values = values_of(dtype, 3, comm.rank(), part * ranks);
    const HostTensor reduced(dtype, values), x(dtype, values), shard(dtype, part),
        gathered(dtype, part * ranks);
    comm.all_reduce(*m.stream, *reduced, ReduceOp::sum, {.label = "a"})->wait(*m.stream), m.sync();
    comm.reduce_scatter(*m.stream, *x, *shard, {.label = "b"})->wait(*m.stream), m.sync();
    comm.all_gather(*m.stream, *shard, *gathered, {.label = "c"})->wait(*m.stream), m.sync();
    expect(same_bytes(reduced, gathered), "bits");
    expect(x.values() == values, "reduce_scatter changed its input");
  });
}

TEST_CASE("gathers and scatters work in place") {
  constexpr std::int64_t kRanks = 4, kPart = 3001;
  on_all_ranks(kRanks, [&](Communicator& comm, RankMachine& m) {
    const HostTensor x(DType::f32, values_of(DType::f32, 4, comm.rank(), kPart * kRanks));
    const Tensor mine = (*x).rows(comm.rank() * kPart, kPart);
    comm.reduce_scatter(*m.stream, *x, mine, {.label = "a"})->wait(*m.stream), m.sync();
    comm.all_gather(*m.stream, mine, *x, {.label = "b"})->wait(*m.stream), m.sync();
    for (std::int64_t i = 0; i < kPart * kRanks; ++i)
      expect(get(*x, i) == sum_of(DType::f32, 4, all_ranks(kRanks), i), "element " + std::to_string(i));
  });
}

TEST_CASE("all_to_all works in place", "[engine]") {
  constexpr std::int64_t kRanks = 4, kPart = 3001;
  on_all_ranks(kRanks, [&](Communicator& comm, RankMachine& m) {
    const HostTensor y(DType::i32, values_of(DType::i32, 5, comm.rank(), kPart * kRanks));
    comm.all_to_all(*m.stream, *y, *y, {.label = "c"})->wait(*m.stream), m.sync();
    for (std::int64_t i = 0; i < kPart * kRanks; ++i)
      expect(get(*y, i) == value_of(DType::i32, 5, i / kPart, comm.rank() * kPart + i % kPart), "all_to_all");
  });
}

TEST_CASE("random programs of collectives over overlapping groups give every rank the right results") {
  const std::int64_t ranks = GENERATE(1, 2, 3, 6, 16);
  const std::uint64_t seed = GENERATE(11, 12, 13);
  const std::vector<ProgramGroup> groups = program_groups(ranks);
  World world(ranks, kSmallChunks);
  world.run([&](std::int64_t rank) {
    run_program(rank, groups, seed, 60, [&](RankMachine& machine, const ProgramGroup& group) {
      return world.communicator(rank, machine, group.ranks, group.name);
    });
  });
  SUCCEED("every element was as worked out");
}

TEST_CASE("background collectives run in order while the caller continues, and before its later collective") {
  constexpr std::int64_t kOperations = 20, kNumel = 2000;
  on_all_ranks(4, [&](Communicator& comm, RankMachine& m) {
    std::vector<HostTensor> tensors;
    std::vector<std::unique_ptr<Work>> works;
    for (std::int64_t k = 0; k < kOperations; ++k) {
      tensors.emplace_back(DType::f32,
                           values_of(DType::f32, 100 + static_cast<std::uint64_t>(k), comm.rank(), kNumel));
      works.push_back(comm.all_reduce(*m.stream, *tensors.back(), ReduceOp::sum,
                                      {.label = "bucket", .progress = Progress::background}));
    }
    // The maximum of equal sums is the sum if the sum is complete on every rank.
    comm.all_reduce(*m.stream, *tensors.back(), ReduceOp::max, {.label = "last"})->wait(*m.stream), m.sync();
    for (const auto& work : works) work->wait_host(30);
    for (std::int64_t k = 0; k < kOperations; ++k)
      for (std::int64_t i = 0; i < kNumel; ++i)
        expect(get(*tensors[static_cast<std::size_t>(k)], i) ==
                   sum_of(DType::f32, 100 + static_cast<std::uint64_t>(k), all_ranks(4), i),
               "bucket " + std::to_string(k));
  });
}

TEST_CASE("a background collective returns before its peers have called it") {
  World world(2, kSmallChunks);
  std::atomic<bool> returned = false;
  world.run([&](std::int64_t rank) {
    RankMachine m;
    const auto comm = world.communicator(rank, m, {0, 1}, "all");
    const HostTensor x(DType::f32, values_of(DType::f32, 9, rank, 100));
    if (rank == 1)  // rank 1 calls only after rank 0's call has returned
      while (!returned) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto work =
        comm->all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "x", .progress = Progress::background});
    if (rank == 0) returned = true;
    work->wait(*m.stream), m.sync();
    expect(get(*x, 99) == sum_of(DType::f32, 9, {0, 1}, 99), "the sum");
  });
  CHECK(returned);
}
