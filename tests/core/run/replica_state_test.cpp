// Replicated state is saved by one data-parallel replica only: a node may have no copy in its snapshots.

#include <catch2/catch.hpp>
#include <map>
#include <mutex>

#include "core/run/worker/restore.h"
#include "core/train/snapshot.h"
#include "io/checkpoint/checkpoint.h"
#include "tests/core/train_support.h"

using namespace trainerd;
using namespace trainerd::core;

namespace {

struct Saved {
  std::vector<std::byte> bytes;
  std::vector<io::TensorSlice> slices;
};

/// Per rank: true if its state comes back from the snapshots of its own node, which has `per_node` ranks.
std::map<std::int64_t, bool> comes_back(job::JobSpec job, std::int64_t per_node) {
  std::mutex mutex;
  std::map<std::int64_t, Saved> saved;
  std::map<std::int64_t, std::vector<std::byte>> whole;
  std::map<std::int64_t, bool> same;
  test::on_every_rank(job, [&](std::int64_t rank, rank::DeviceRank& cpu) {
    test::losses(cpu.trainer(), job, 1, 2);
    const train::Snapshot snapshot(cpu.trainer().params());
    Saved mine{std::vector<std::byte>(static_cast<std::size_t>(snapshot.bytes())), snapshot.slices()};
    snapshot.fill(cpu.backend(), cpu.trainer().stream(), mine.bytes);
    const std::lock_guard lock(mutex);
    saved[rank] = std::move(mine);
    whole[rank] = test::state_of(cpu.trainer());
  });
  test::on_every_rank(job, [&](std::int64_t rank, rank::DeviceRank& cpu) {
    std::vector<io::ShardContent> shards;
    for (const auto& [other, shard] : saved)
      if (other / per_node == rank / per_node) shards.push_back({shard.bytes, shard.slices});
    io::CheckpointReader reader("the node's snapshots", shards);
    const train::Snapshot snapshot(cpu.trainer().params());
    snapshot.load_and_share(cpu.backend(), cpu.trainer().stream(), reader);
    cpu.trainer().publish();
    const bool all = test::state_of(cpu.trainer()) == whole.at(rank);
    const std::lock_guard lock(mutex);
    same[rank] = all;
  });
  return same;
}

std::map<std::int64_t, bool> all_of(std::int64_t ranks) {
  std::map<std::int64_t, bool> all;
  for (std::int64_t rank = 0; rank < ranks; ++rank) all[rank] = true;
  return all;
}

job::JobSpec replicated(std::int64_t tp, std::int64_t dp, int zero, std::int64_t zero_group) {
  job::JobSpec job = test::small_job("bf16");
  job.batch.micro = 1;
  job.parallel.tp = tp, job.parallel.dp = dp;
  job.parallel.zero = zero, job.parallel.zero_group = zero_group;
  return job;
}

}  // namespace

TEST_CASE("a replica whose node holds nothing of its state gets it from the one that saved it", "[restart]") {
  CHECK(comes_back(replicated(1, 2, 0, 0), 1) == all_of(2));
  CHECK(comes_back(replicated(2, 2, 0, 0), 2) == all_of(4));
  CHECK(comes_back(replicated(1, 4, 0, 0), 2) == all_of(4));
}

TEST_CASE("of hybrid sharding a group gets its parts from the group that saved them", "[restart]") {
  CHECK(comes_back(replicated(1, 4, 2, 2), 2) == all_of(4));
}

TEST_CASE("all ranks of a run share what they hold, or none does", "[restart]") {
  // Groups of two ranks, on nodes of three ranks and of one: rank 0's groups are inside its node, rank 2's
  // are not.
  CHECK(comes_back(replicated(1, 4, 2, 2), 3) == all_of(4));
  const job::JobSpec job = replicated(1, 4, 2, 2);
  const auto elsewhere = [&](std::int64_t ranks_of_node) {
    run::Start start;
    start.layout = rank::layout_of(job, spec::job_topology(job));
    start.node_count = ranks_of_node;
    return run::replicas_may_be_elsewhere(start);
  };
  CHECK(elsewhere(3));
  CHECK(elsewhere(1));
  CHECK_FALSE(elsewhere(4));
}
