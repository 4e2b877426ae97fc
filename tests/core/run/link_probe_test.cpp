// Links between nodes, measured by ranks that are threads.

#include "core/run/worker/link_probe.h"

#include <catch2/catch.hpp>
#include <mutex>
#include <numeric>

#include "kernels/base/clock.h"
#include "kernels/cpu/cpu_backend.h"
#include "parallel/comm/local/local_world.h"
#include "parallel/comm/observed_communicator.h"

using namespace trainerd;
using core::run::LinkTime;

namespace {

/// By rank that has timed it. What rank `slow` sends takes so many seconds longer.
std::vector<std::vector<LinkTime>> probed(std::int64_t ranks, std::int64_t per_node, std::int64_t slow = -1,
                                          double seconds = 0) {
  parallel::LocalWorld world(ranks);
  std::vector<std::int64_t> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<LinkTime>> links(static_cast<std::size_t>(ranks));
  world.run([&](std::int64_t rank) {
    base::ThreadPool pool(1);
    kernels::CpuBackend backend(kernels::detect_cpu(1), pool);
    const auto direct = world.communicator(rank, backend, all, "world");
    const auto group = parallel::make_observed(
        *direct, [&](kernels::Stream&, parallel::CommMoment moment, const parallel::CommCall& call) {
          if (rank != slow || moment != parallel::CommMoment::issue || call.sent == nullptr) return;
          const double end = base::monotonic_seconds() + seconds;
          while (base::monotonic_seconds() < end) {}
        });
    links[static_cast<std::size_t>(rank)] = core::run::probe_links(backend, *group, per_node);
  });
  return links;
}

}  // namespace

TEST_CASE("each rank times the link to its place on the next node, in a ring", "[preflight]") {
  for (const auto& [ranks, per_node] : {std::pair{6, 2}, {8, 2}, {5, 1}, {3, 1}}) {
    CAPTURE(ranks, per_node);
    const auto links = probed(ranks, per_node);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::vector<LinkTime>& own = links[static_cast<std::size_t>(rank)];
      REQUIRE(own.size() == 1);
      CHECK((own[0].from_rank == rank && own[0].to_rank == (rank + per_node) % ranks));
      CHECK(own[0].latency_seconds > 0);
      CHECK(own[0].latency_seconds < 1);
      CHECK(own[0].bytes_per_second > 1e6);
    }
  }
}

TEST_CASE("two nodes have one link for each place, one node has none", "[preflight]") {
  const auto links = probed(4, 2);
  CHECK(links[0].at(0).to_rank == 2);
  CHECK(links[1].at(0).to_rank == 3);
  CHECK((links[2].empty() && links[3].empty()));
  for (const auto& own : probed(4, 4)) CHECK(own.empty());
}

TEST_CASE("a slow rank shows in the links that it is at the end of, and in no others", "[preflight]") {
  const auto links = probed(4, 1, 2, 5e-3);
  // A trip there and back has one message of rank 2.
  CHECK(links[1].at(0).latency_seconds >= 2.4e-3);
  CHECK(links[2].at(0).latency_seconds >= 2.4e-3);
  CHECK(links[0].at(0).latency_seconds < links[1].at(0).latency_seconds);
  CHECK(links[3].at(0).latency_seconds < links[2].at(0).latency_seconds);
}
