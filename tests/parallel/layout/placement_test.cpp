#include "parallel/layout/placement.h"

#include <catch2/catch.hpp>
#include <set>

#include "kernels/base/error.h"
#include "parallel/layout/placement_svg.h"

namespace trainerd::parallel {
namespace {

Topology hgx(std::int64_t nodes) {
  Topology t;
  t.name = "hgx";
  t.nodes = nodes;
  t.devices_per_node = t.nvlink_domain = t.rails = 8;
  return t;
}

Topology nvl72(std::int64_t nodes) {
  Topology t;
  t.name = "nvl72";
  t.nodes = nodes;
  t.devices_per_node = t.rails = 4;
  t.nvlink_domain = 72;
  return t;
}

Topology cpus(std::int64_t devices) {
  Topology t;
  t.devices_per_node = devices;
  return t;
}

PlacedGrid placed(std::int64_t tp, std::int64_t dp, std::int64_t pp, const Topology& topology,
                  const std::string& order = ParallelOptions{}.order) {
  ParallelOptions options;
  options.tp = tp;
  options.dp = dp;
  options.pp = pp;
  options.order = order;
  return {make_grids(options).dense, topology};
}

std::set<Link> links(const PlacedGrid& p, Axis axis) {
  std::set<Link> found;
  for (const auto& group : p.grid.groups(axis)) found.insert(p.link(group, axis));
  return found;
}

TEST_CASE("ranks fill node after node", "[placement]") {
  const PlacedGrid p = placed(8, 4, 1, hgx(4));
  for (std::int64_t rank = 0; rank < 32; ++rank)
    CHECK(p.placement[rank] == DeviceLocation{rank / 8, rank % 8});
}

TEST_CASE("more ranks than devices are refused with sizes that would fit", "[placement]") {
  CHECK_THROWS_AS(placed(8, 4, 1, hgx(3)), base::CapacityError);
  CHECK_THROWS_WITH(placed(8, 4, 1, hgx(3)), Catch::Contains("32 ranks") && Catch::Contains("24 devices") &&
                                                 Catch::Contains("cluster.nodes to 4"));
}

TEST_CASE("a tensor group has NVLink, replicas and stages of whole nodes have their rail", "[placement]") {
  const PlacedGrid p = placed(4, 2, 3, hgx(3));
  CHECK(links(p, Axis::tp) == std::set<Link>{Link::nvlink});
  CHECK(links(p, Axis::dp) == std::set<Link>{Link::nvlink});
  CHECK(links(p, Axis::pp) == std::set<Link>{Link::rail});
  CHECK(links(placed(8, 4, 1, hgx(4)), Axis::dp) == std::set<Link>{Link::rail});
  // Two replicas per node, at the same devices in every node: rings can leave each node on its own rails.
  CHECK(links(placed(4, 8, 1, hgx(4)), Axis::dp) == std::set<Link>{Link::rail});
  CHECK(links(placed(4, 8, 1, hgx(4)), Axis::cp) == std::set<Link>{Link::none});
}

TEST_CASE("groups at different devices from node to node need the whole network", "[placement]") {
  // Replicas are at devices 0, 3, 6 of node 0 and 1, 4, 7 of node 1 and so on.
  CHECK(links(placed(1, 8, 3, hgx(3), "pp-tp-dp"), Axis::dp).count(Link::network) == 1);
}

TEST_CASE("pipeline neighbours in different nodes share a rail, in whichever part of a node a stage is",
          "[placement]") {
  // Pipelines longer than a node that fill whole nodes.
  const std::vector<std::pair<int, int>> cases = {{4, 4}, {2, 8}, {1, 16}, {4, 8}, {1, 24}, {2, 12}};
  for (const auto& [tp, pp] : cases) {
    INFO("tp " << tp << " pp " << pp);
    const PlacedGrid p = placed(tp, 1, pp, hgx(tp * pp / 8));
    std::set<std::pair<std::int64_t, std::int64_t>> used;
    for (std::int64_t rank = 0; rank < p.placement.ranks(); ++rank) {
      const DeviceLocation& location = p.placement[rank];
      CHECK(location.node == rank / 8);
      CHECK(used.insert({location.node, location.device}).second);
    }
    CHECK(p.tp_problem().empty());
    for (const auto& group : p.grid.groups(Axis::pp))
      for (std::size_t i = 0; i + 1 < group.size(); ++i) {
        const DeviceLocation &a = p.placement[group[i]], &b = p.placement[group[i + 1]];
        CHECK((a.node == b.node || a.device == b.device));
      }
    CHECK(links(p, Axis::pp) == std::set<Link>{Link::rail});
  }
}

TEST_CASE("replicas of a pipeline that is longer than a node keep their rails", "[placement]") {
  const PlacedGrid p = placed(2, 3, 8, hgx(6), "tp-pp-dp");
  CHECK(links(p, Axis::pp) == std::set<Link>{Link::rail});
  CHECK(links(p, Axis::dp) == std::set<Link>{Link::rail});
}

TEST_CASE("a ring counts the way from the last stage to the first", "[placement]") {
  PlacedGrid p = placed(4, 1, 6, hgx(3));
  CHECK(links(p, Axis::pp) == std::set<Link>{Link::rail});
  p.ring = true;
  CHECK(links(p, Axis::pp) == std::set<Link>{Link::network});
}

TEST_CASE("NVLink reaches over the nodes of its domain", "[placement]") {
  const PlacedGrid inside = placed(8, 9, 1, nvl72(18));
  CHECK(inside.tp_problem().empty());
  CHECK(links(inside, Axis::tp) == std::set<Link>{Link::nvlink});
  CHECK(links(inside, Axis::dp) == std::set<Link>{Link::nvlink});
  const PlacedGrid two = placed(8, 18, 1, nvl72(36));
  CHECK(two.tp_problem().empty());
  CHECK(links(two, Axis::dp) == std::set<Link>{Link::rail});
  CHECK_THAT(placed(16, 9, 1, nvl72(36)).tp_problem(),
             Catch::Contains("ranks 64 65 66 67 68 69 70 71 72") && Catch::Contains("set parallel.tp to 12"));
}

TEST_CASE("ranks of one machine without NVLink share its memory", "[placement]") {
  const PlacedGrid p = placed(2, 2, 2, cpus(8));
  for (const Axis axis : {Axis::tp, Axis::dp, Axis::pp})
    CHECK(links(p, axis) == std::set<Link>{Link::shared_memory});
  CHECK(p.tp_problem().empty());
}

TEST_CASE("the error for a tensor group that leaves its NVLink domain names its ranks and a remedy",
          "[placement]") {
  const std::string wide = placed(16, 2, 1, hgx(4)).tp_problem();
  CHECK_THAT(wide,
             Catch::Contains("ranks 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 are one tensor-parallel group") &&
                 Catch::Contains("rank 8 in 1 (of 8 devices each)") && Catch::Contains("and 1 more group") &&
                 Catch::Contains("set parallel.tp to 8") && Catch::Contains("allow_tp_across_nodes: true"));
  CHECK_THAT(placed(3, 8, 1, hgx(3)).tp_problem(),
             Catch::Contains("ranks 6 7 8 are") && Catch::Contains("set parallel.tp to 2"));
  CHECK_THAT(placed(2, 8, 1, hgx(2), "dp-tp").tp_problem(),
             Catch::Contains("ranks 0 8 are") && Catch::Contains("put tp first in parallel.order"));
  Topology many = cpus(2);
  many.nodes = 2;
  CHECK_THAT(placed(4, 1, 1, many).tp_problem(), Catch::Contains("is in node 0 and rank 2 in 1"));
  CHECK(links(placed(16, 2, 1, hgx(4)), Axis::tp) == std::set<Link>{Link::rail});
}

TEST_CASE("the picture has a cell for each device, with every rank in it once", "[placement]") {
  const std::string svg = placement_svg(placed(2, 2, 3, hgx(2)));
  const auto count = [&](const std::string& what) {
    std::size_t n = 0;
    for (std::size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) ++n;
    return n;
  };
  for (int rank = 0; rank < 12; ++rank) CHECK(count(">rank " + std::to_string(rank) + "<") == 1);
  CHECK(count("class=\"node\"") == 2);
  CHECK(count("class=\"idle\"") == 4);
  CHECK(count(">tp1 dp0<") == 3);
  CHECK(count(">stage 2<") == 1);
  CHECK(count("<script") == 0);
}

}  // namespace
}  // namespace trainerd::parallel
