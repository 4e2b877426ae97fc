// Transfers that share links: examples by hand, and steps of real layouts, which sharing must not shorten.

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "core/plan/cost/link_sharing.h"
#include "core/plan/replay/stage_records.h"
#include "core/plan/search/layout_parts.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "tests/full.h"

using namespace trainerd;
using core::plan::PortUse;
using core::plan::TransferCost;

namespace {

constexpr core::plan::TransferCost of_nvlink(double seconds, double latency = 0) {
  return {latency, seconds, {1, 0, 0}};
}
constexpr core::plan::TransferCost of_network(double seconds, double latency = 0) {
  return {latency, seconds, {0, 1, 0}};
}

struct Start {
  double time;
  core::plan::TransferCost cost;
  std::vector<core::plan::PortUse> uses = {};  ///< if empty: rank 0, both directions
};

/// The end time of each transfer.
std::vector<double> ends_of(const std::vector<Start>& starts) {
  core::plan::LinkSharing links(3);
  std::vector<double> ends(starts.size(), -1);
  std::map<std::size_t, std::size_t> under_way;
  const auto until = [&](double time) {
    while (links.next() <= time && links.next() < std::numeric_limits<double>::infinity()) {
      const double now = links.next();
      const std::size_t id = links.step();
      if (id != core::plan::LinkSharing::kNone) ends[under_way.at(id)] = now;
    }
  };
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const Start& s = starts[i];
    until(s.time);
    std::vector<core::plan::PortUse> uses = s.uses.empty() ? std::vector<core::plan::PortUse>{{}} : s.uses;
    for (core::plan::PortUse& use : uses) use.cost = &s.cost;
    under_way[links.start(s.time, s.cost.latency, s.cost.bandwidth, uses)] = i;
  }
  until(std::numeric_limits<double>::infinity());
  return ends;
}

std::vector<core::plan::PortUse> message(int from, int to) {
  return {{core::plan::PortUse::Way::out, from}, {core::plan::PortUse::Way::in, to}};
}

}  // namespace

TEST_CASE("two transfers on a port go at half their speed while both are under way", "[links]") {
  // The first runs alone for 1 s. Both then share: the second takes 2 s for its 1 s of work, and the first
  // has 2 s left.
  CHECK(ends_of({{0, of_nvlink(4)}, {1, of_nvlink(1)}}) == std::vector{5.0, 3.0});
  // From 2 to 5 each has a third of the port; then a half.
  CHECK(ends_of({{0, of_nvlink(4)}, {0, of_nvlink(3)}, {2, of_nvlink(1)}}) == std::vector{8.0, 7.0, 5.0});
  CHECK(ends_of({{0, of_nvlink(4)}, {4, of_nvlink(1)}}) == std::vector{4.0, 5.0});
}

TEST_CASE("transfers on different ports, ranks or directions are independent", "[links]") {
  CHECK(ends_of({{0, of_nvlink(4)}, {1, of_network(1)}}) == std::vector{4.0, 2.0});
  CHECK(ends_of({{0, of_nvlink(4)}, {1, of_nvlink(1), {{PortUse::Way::both, 1}}}}) == std::vector{4.0, 2.0});
  CHECK(ends_of({{0, of_network(4), message(0, 1)}, {1, of_network(1), message(1, 0)}}) ==
        std::vector{4.0, 2.0});
  // Both go into rank 1.
  CHECK(ends_of({{0, of_network(4), message(0, 1)}, {1, of_network(1), message(2, 1)}}) ==
        std::vector{5.0, 3.0});
}

TEST_CASE("latency is not shared", "[links]") {
  // The second transfers data from 2 on, when the first has one second left.
  CHECK(ends_of({{0, of_nvlink(3)}, {0, of_nvlink(1, 2)}}) == std::vector{4.0, 4.0});
  CHECK(ends_of({{0, of_nvlink(3)}, {0, of_nvlink(0, 2)}}) == std::vector{3.0, 2.0});
  CHECK(ends_of({{0, of_nvlink(0, 3)}, {0, of_nvlink(0, 2)}}) == std::vector{3.0, 2.0});
}

TEST_CASE("transfers below a port's capacity slow down only by the excess load", "[links]") {
  const core::plan::TransferCost quarter{0, 4, {0.25, 0, 0}}, half{0, 4, {0.5, 0, 0}};
  CHECK(ends_of({{0, quarter}, {0, half}}) == std::vector{4.0, 4.0});
  // A load of 1.25 ports: both are slowed to 4/5 until the full one ends at 2.5, when two of the quarter's
  // four seconds are done.
  CHECK(ends_of({{0, quarter}, {0, of_nvlink(2)}}) == std::vector{4.5, 2.5});
}

TEST_CASE("a transfer runs at the speed of its busiest port", "[links]") {
  // Uses NVLink and the network, shared with a message from rank 0 and a transfer of rank 1.
  const core::plan::TransferCost both{0, 4, {0.5, 1, 0}};
  // The message shares its port at both ends: two users at rank 0, three at rank 1.
  const std::vector<double> ends = ends_of({{0, both},
                                            {0, of_network(6), {{core::plan::PortUse::Way::both, 1}}},
                                            {0, of_network(6), {{core::plan::PortUse::Way::both, 1}}},
                                            {0, of_network(1), message(0, 1)},
                                            {0, of_nvlink(1)}});
  CHECK(ends[3] == Approx(3));                  // a third of the port
  CHECK(ends[4] == Approx(1.5));                // 1.5 of NVLink
  CHECK(ends[0] == Approx(3 + (4 - 3 / 2.0)));  // half of it during the message
  CHECK(ends[1] == Approx(3 + 2 * (6 - 3 / 3.0)));
}

TEST_CASE("sharing makes no step of real layouts shorter, and ledgers still sum to it", "[links]") {
  const core::job::RecomputeOptions none{};
  const core::plan::LayoutSpace space{.tp = {1, 2, 4},
                                      .pp = {1, 2, 4},
                                      .micro = {1},
                                      .zero_group = {0, 4},
                                      .sequence_parallel = {true},
                                      .recompute = {none}};
  const core::job::JobSpec job = core::spec::parse_job(
      "model: {layers: 8, hidden: 4096, heads: 32, kv_heads: 2, ffn: 8192, vocab: 32000, seq_len: 1024, "
      "tie_embeddings: true}\nsteps: 1\nprecision: bf16\n"
      "data: {format: synthetic}\ncluster: {preset: dgx-h100}\nparallel: {dp: 32}\nbatch: {global: 256, "
      "micro: 1}\n",
      "job.yaml");
  const parallel::Topology topology = core::spec::job_topology(job);
  core::plan::LayoutParts parts(job, topology);
  std::size_t longer = 0, layouts = 0;
  double most = 1;
  std::mt19937 draw(5);  // a random third of the layouts, all in full runs
  for (const core::plan::LayoutChoice& c : core::plan::all_layouts(job, topology, space)) {
    if (draw() % 3 != 0 && !test::runs_full()) continue;
    const core::job::JobSpec chosen = core::plan::with_choice(job, c);
    const core::plan::StageRecords records =
        core::plan::record_all(chosen, parts.layout(c), topology.device, parts.slots(c));
    core::plan::ReplayInput input = core::plan::replay_input(chosen, topology, parts.places(c), records);
    const core::plan::Replay shared = core::plan::replay(input);
    const auto alone = [](core::plan::TransferCost cost) {
      cost.shares = {};
      return cost;
    };
    input.collective_cost = [&, with = input.collective_cost](std::int64_t rank,
                                                              const core::rank::RecordedCollective& call,
                                                              const core::rank::RankRecord& record) {
      return alone(with(rank, call, record));
    };
    input.message_cost = [&, with = input.message_cost](int from, int to) { return alone(with(from, to)); };
    const core::plan::Replay apart = core::plan::replay(input);
    CAPTURE(core::plan::differences(core::plan::choice_of(job), c));
    CHECK(shared.step_seconds >= apart.step_seconds * (1 - 1e-12));
    CHECK(shared.mean.sum() == Approx(shared.step_seconds).epsilon(1e-9));
    longer += shared.step_seconds > 1.0001 * apart.step_seconds, ++layouts;
    most = std::max(most, shared.step_seconds / apart.step_seconds);
  }
  std::printf("links: %zu of %zu layouts take longer, at most %.3f times\n", longer, layouts, most);
  CHECK(longer > layouts / 4);
}
