// What starting a job of many ranks costs its leader: planning, and meeting the other nodes.

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <thread>

#include "core/run/agent/planned_ranks.h"
#include "core/run/nodes/membership.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "core/version/version.h"
#include "tests/core/train_support.h"

using namespace trainerd;
using namespace trainerd::core;

namespace {

std::int64_t resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;  // the most so far
}

/// Of all threads: what others do on the machine meanwhile is not in it.
double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

JobSpec job_of_16384_ranks() {
  return parse_job(
      "steps: 20\ndevice: cuda\nprecision: bf16\nmodel: {preset: llama-3-405b}\nbatch: {global: 2048, micro: "
      "1}\n"
      "data: {format: synthetic}\nparallel: {tp: 8, pp: 16, dp: 128, zero: 1, sequence_parallel: true}\n"
      "cluster: {preset: dgx-h100, nodes: 2048}\n",
      "job.yaml");
}

/// Held for this process; false where the system does not allow it.
bool allow_descriptors(rlim_t count) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= count) return true;
  limit.rlim_cur = std::min(count, limit.rlim_max);
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= count;
}

}  // namespace

TEST_CASE("the leader of 16,384 ranks plans them in less than 2 s and 500 MB", "[start]") {
  const std::int64_t before = resident_bytes();
  const double begin = processor_seconds();
  const JobSpec job = job_of_16384_ranks();
  const parallel::Topology topology = job_topology(job, Absent::assumed);
  const parallel::Layout layout = layout_of(job, topology);
  const PlannedRanks plans = plan_ranks(job, layout, topology, node_ranks(layout, topology, 0), true);
  const double seconds = processor_seconds() - begin;
  CAPTURE(seconds, resident_bytes() - before);
  CHECK(plans.here.size() == 8);
  std::int64_t ranks = 0;
  for (const RankClass& known : plans.known) ranks += known.ranks;
  CHECK(ranks == 16384);
  CHECK(seconds < 2);
  CHECK(resident_bytes() - before < 500'000'000);
}

TEST_CASE("what the leader knows of other nodes' ranks is what planning each of them says", "[start]") {
  JobSpec job = test::small_job();
  job.model.layers = 4;
  for (const auto& [tp, pp, dp, zero] : {std::tuple{2, 2, 2, 1}, {1, 4, 2, 3}, {2, 1, 4, 0}}) {
    CAPTURE(tp, pp, dp, zero);
    job.parallel.tp = tp, job.parallel.pp = pp, job.parallel.dp = dp, job.parallel.zero = zero;
    job.batch.global = 16;
    const std::int64_t layout_ranks = tp * pp * dp;
    parallel::Topology topology = test::cpu_topology(1);
    topology.nodes = layout_ranks / 2, topology.devices_per_node = 2;
    const parallel::Layout layout = layout_of(job, topology);
    const PlannedRanks plans = plan_ranks(job, layout, topology, {.first = 2, .count = 2}, true);
    std::int64_t ranks = 0, bytes = 0, each = 0;
    for (const RankClass& known : plans.known) {
      ranks += known.ranks;
      bytes += known.ranks * known.plan.memory.total_bytes();
    }
    for (std::int64_t rank = 0; rank < layout.grid.ranks(); ++rank) {
      const DryRun plan = dry_run(job, layout, rank, topology.device);
      each += plan.memory.total_bytes();
      if (rank == 2 || rank == 3)
        CHECK(plans.here[static_cast<std::size_t>(rank - 2)].snapshot_bytes == plan.snapshot_bytes);
    }
    CHECK(ranks == layout.grid.ranks());
    CHECK(static_cast<double>(bytes) == Approx(static_cast<double>(each)).epsilon(0.01));
  }
}

TEST_CASE("the leader of 2,048 nodes meets them all in less than 2 s", "[start]") {
  constexpr std::int64_t kNodes = 2048;
  if (!allow_descriptors(2 * kNodes + 256)) {
    WARN("skipped: this system allows too few open files for " << kNodes << " nodes");
    return;
  }
  JobSpec job = job_of_16384_ranks();
  MembershipOptions options;
  options.nodes.nodes = kNodes;
  options.rendezvous = {"127.0.0.1", base::local_port(base::listen_at({"127.0.0.1", 0}).get())};
  options.timeout_seconds = 60;
  const std::int64_t before = resident_bytes();
  std::vector<base::UniqueFd> joined(kNodes);
  const std::string yaml = shared_job(job);
  std::thread others([&] {
    for (std::int64_t node = 1; node < kNodes; ++node) {
      std::string why;
      base::UniqueFd& socket = joined[static_cast<std::size_t>(node)];
      const std::string hello = encode(
          Hello{node, kNodes, version(), "host" + std::to_string(node), yaml, kernels::detect_cpu().isa});
      while (!socket) {
        socket = parallel::join_store(options.rendezvous, hello, 1, why);
        if (!socket) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
  });
  const base::UniqueFd no_signal(::eventfd(0, EFD_CLOEXEC));
  const double begin = processor_seconds();
  Membership membership(options, job, no_signal.get());
  membership.begin({.last_good = "none"});
  const double seconds = processor_seconds() - begin;  // of the other nodes' stand-ins too
  others.join();
  INFO("met in " << seconds << " s, " << resident_bytes() - before << " bytes more");
  CHECK(seconds < 2);
  CHECK(resident_bytes() - before < 100'000'000);
  for (const std::int64_t node : {std::int64_t{1}, kNodes / 2, kNodes - 1}) {
    char text[512];
    CHECK(::recv(joined[static_cast<std::size_t>(node)].get(), text, sizeof(text), 0) > 0);
  }
}
