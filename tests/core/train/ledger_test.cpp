// A stall is charged to the operation that the compute stream waited for.

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/base/clock.h"
#include "parallel/comm/local/local_world.h"
#include "tests/core/train_support.h"

using namespace trainerd;

namespace {

constexpr double kDelay = 0.5;  // seconds, far longer than a step of this size
constexpr double kThreshold = 0.25;

/// The ledgers of every rank's second step, in which rank `late` sleeps after its first call of the operator
/// `op`.
std::vector<base::TimeLedger> ledgers(const parallel::ParallelOptions& options, std::int64_t late,
                                      const std::string& op) {
  core::job::JobSpec job = test::small_job();
  job.batch.micro = 1;
  job.parallel = options;
  if (options.ep > 1) job.model.experts = {.count = 4, .per_token = 2};
  parallel::Topology topology = test::cpu_topology(1);
  topology.devices_per_node = 64;
  const parallel::Layout layout = core::rank::layout_of(job, topology);
  std::vector<base::TimeLedger> times(static_cast<std::size_t>(layout.grid.ranks()));
  std::vector<double> begins(times.size());
  double woke = 0;
  parallel::LocalWorld world(layout.grid.ranks());
  world.run([&](std::int64_t rank) {
    bool sleeps = false;
    test::FunctionWorld others(
        [&](kernels::Backend& backend, const std::string& name, const std::vector<std::int64_t>& members) {
          return world.communicator(rank, backend, members, name);
        });
    core::rank::DeviceRank cpu(job, layout, topology, rank, others, [&](const kernels::ObservedCall& call) {
      if (!sleeps || name_of(call.op) != op) return;
      sleeps = false;
      std::this_thread::sleep_for(std::chrono::duration<double>(kDelay));
      woke = base::monotonic_seconds();
    });
    cpu.trainer().initialise();
    test::step_on(cpu.trainer(), job, 1);
    sleeps = rank == late;
    const double begin = begins[static_cast<std::size_t>(rank)] = base::monotonic_seconds();
    times[static_cast<std::size_t>(rank)] = test::step_on(cpu.trainer(), job, 2).time;
    const double took = base::monotonic_seconds() - begin, sum = times[static_cast<std::size_t>(rank)].sum();
    if (sum > took) throw std::logic_error("a ledger is longer than its step");
  });
  // No rank's step ends before the late rank has slept; a rank may begin while it sleeps.
  CHECK(woke - begins[static_cast<std::size_t>(late)] >= kDelay);
  for (std::size_t rank = 0; rank < times.size(); ++rank) {
    const base::TimeLedger& time = times[rank];
    CHECK(time.sum() >= woke - begins[rank]);
    for (const base::LedgerPartInfo& part : base::kLedgerParts) {
      CAPTURE(part.name);
      CHECK(time[part.part] >= 0);
    }
  }
  return times;
}

}  // namespace

TEST_CASE("a tensor-parallel stall is exposed communication of tp and not compute", "[ledger]") {
  const bool sequence_parallel = GENERATE(false, true);
  const auto times = ledgers({.tp = 2, .sequence_parallel = sequence_parallel}, 1, "attention_forward");
  CHECK(times[0][base::LedgerPart::exposed_tp] >= kThreshold);
  CHECK(times[0][base::LedgerPart::compute] < kThreshold);
  CHECK(times[1][base::LedgerPart::compute] >= kThreshold);
  for (const base::TimeLedger& time : times) {
    CHECK(time[base::LedgerPart::exposed_tp] > 0);
    CHECK(time[base::LedgerPart::exposed_dp] == 0);
    CHECK(time[base::LedgerPart::exposed_pp] == 0);
    CHECK(time[base::LedgerPart::bubble] == 0);
  }
}

TEST_CASE("a context-parallel stall is exposed communication of cp", "[ledger]") {
  const auto times = ledgers({.cp = 2}, 1, "attention_forward");
  CHECK(times[0][base::LedgerPart::exposed_cp] >= kThreshold);
  CHECK(times[1][base::LedgerPart::compute] >= kThreshold);
  for (const base::TimeLedger& time : times) {
    CHECK(time[base::LedgerPart::exposed_cp] > 0);
    CHECK(time[base::LedgerPart::exposed_tp] == 0);
    CHECK(time[base::LedgerPart::exposed_pp] == 0);
    CHECK(time[base::LedgerPart::bubble] == 0);
  }
}

TEST_CASE("an expert-parallel stall is exposed communication of ep", "[ledger]") {
  const auto times = ledgers({.dp = 2, .ep = 2}, 1, "expert_fprop");
  CHECK(times[0][base::LedgerPart::exposed_ep] >= kThreshold);
  CHECK(times[1][base::LedgerPart::compute] >= kThreshold);
  for (const base::TimeLedger& time : times) {
    CHECK(time[base::LedgerPart::exposed_ep] > 0);
    CHECK(time[base::LedgerPart::exposed_tp] == 0);
    CHECK(time[base::LedgerPart::bubble] == 0);
  }
}

TEST_CASE("a data-parallel stall is exposed communication of dp", "[ledger]") {
  const auto times = ledgers({.dp = 2}, 1, "attention_forward");
  CHECK(times[0][base::LedgerPart::exposed_dp] >= kThreshold);
  CHECK(times[1][base::LedgerPart::compute] >= kThreshold);
  for (const base::TimeLedger& time : times) {
    CHECK(time[base::LedgerPart::exposed_dp] > 0);
    CHECK(time[base::LedgerPart::exposed_tp] == 0);
    CHECK(time[base::LedgerPart::exposed_pp] == 0);
    CHECK(time[base::LedgerPart::bubble] == 0);
  }
}

TEST_CASE("awaiting a pipeline neighbour is bubble, and sending to it exposed communication of pp",
          "[ledger]") {
  const auto times = ledgers({.pp = 2}, 0, "attention_forward");
  CHECK(times[1][base::LedgerPart::bubble] >= kThreshold);
  CHECK(times[0][base::LedgerPart::compute] >= kThreshold);
  for (const base::TimeLedger& time : times) {
    CHECK(time[base::LedgerPart::exposed_pp] > 0);
    CHECK(time[base::LedgerPart::exposed_pp] < kThreshold);
    CHECK(time[base::LedgerPart::exposed_tp] == 0);
    CHECK(time[base::LedgerPart::exposed_dp] == 0);
  }
}

TEST_CASE("a stall in a reduction over all ranks is exposed communication of the world", "[ledger]") {
  const auto times = ledgers({.tp = 2, .pp = 2, .dp = 2}, 5, "total_square_sum");
  for (std::size_t rank = 0; rank < times.size(); ++rank) {
    CAPTURE(rank);
    if (rank == 5) CHECK(times[rank][base::LedgerPart::optimizer] >= kThreshold);
    else CHECK(times[rank][base::LedgerPart::exposed_world] >= kThreshold);
  }
}
