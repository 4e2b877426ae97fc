#include "parallel/layout/grid.h"

#include <catch2/catch.hpp>
#include <set>

#include "kernels/base/error.h"

namespace trainerd::parallel {
namespace {

using Groups = std::vector<std::vector<std::int64_t>>;

ParallelOptions sizes(std::int64_t tp, std::int64_t cp, std::int64_t ep, std::int64_t dp, std::int64_t pp) {
  ParallelOptions options;
  options.tp = tp;
  options.cp = cp;
  options.ep = ep;
  options.dp = dp;
  options.pp = pp;
  return options;
}

ParallelOptions ordered(ParallelOptions options, const std::string& order) {
  options.order = order;
  return options;
}

TEST_CASE("in any order rank and coordinate are inverse and an axis' groups hold each rank once", "[grid]") {
  for (const char* text : {"tp-cp-ep-dp-pp", "pp-dp-ep-cp-tp", "dp-tp-pp-cp-ep"}) {
    INFO(text);
    AxisOrder order = kDefaultOrder;
    std::string problem;
    REQUIRE(parse_order(text, order, problem));
    const ProcessGrid grid({2, 3, 1, 2, 4}, order);
    REQUIRE(grid.ranks() == 48);
    for (std::int64_t r = 0; r < grid.ranks(); ++r) CHECK(grid.rank(grid.coordinate(r)) == r);
    for (const Axis axis : kDefaultOrder) {
      std::set<std::int64_t> all;
      std::int64_t before = -1;
      for (const auto& group : grid.groups(axis)) {
        CHECK(group.size() == static_cast<std::size_t>(grid.size(axis)));
        CHECK(group.front() > before);
        before = group.front();
        for (const std::int64_t rank : group) {
          CHECK(all.insert(rank).second);
          CHECK(grid.group(rank, axis) == group);
        }
      }
      CHECK(all.size() == 48);
    }
  }
}

// The example in the documentation of Megatron-LM's initialize_model_parallel: 16 GPUs, tensor parallel 2,
// pipeline 4.
TEST_CASE("the groups are those that Megatron-LM publishes for 16 GPUs", "[grid]") {
  const ProcessGrid grid = make_grids(sizes(2, 1, 1, 2, 4)).dense;
  CHECK(grid.groups(Axis::dp) ==
        Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}});
  CHECK(grid.groups(Axis::tp) ==
        Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}});
  CHECK(grid.groups(Axis::pp) == Groups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}});
}

// Cases of Megatron-LM's test of its rank generator; the expected groups are written as ranges of ranks, as
// there: tensor groups are consecutive, context groups stride by tp, data groups by tp cp within a stage,
// stages are blocks.
TEST_CASE("groups are the ranges of ranks in the tests of Megatron-LM's rank generator", "[grid]") {
  struct Case {
    std::int64_t ranks, tp, pp, cp;
  };
  const std::vector<Case> cases = {{8, 8, 1, 1},  {8, 2, 2, 1},  {8, 2, 4, 1},
                                   {24, 8, 3, 1}, {64, 2, 2, 2}, {128, 4, 8, 4}};
  for (const Case& c : cases) {
    INFO(c.ranks << " ranks, tp " << c.tp << " pp " << c.pp << " cp " << c.cp);
    const std::int64_t dp = c.ranks / (c.tp * c.pp * c.cp);
    const ProcessGrid grid = make_grids(sizes(c.tp, c.cp, 1, dp, c.pp)).dense;
    const auto range = [](std::int64_t begin, std::int64_t end, std::int64_t step) {
      std::vector<std::int64_t> ranks;
      for (std::int64_t r = begin; r < end; r += step) ranks.push_back(r);
      return ranks;
    };
    const std::int64_t stage = c.ranks / c.pp;
    Groups tp, cp, data, pp;
    for (std::int64_t i = 0; i < c.ranks; i += c.tp) tp.push_back(range(i, i + c.tp, 1));
    for (std::int64_t i = 0; i < c.ranks; i += c.tp * c.cp)
      for (std::int64_t j = 0; j < c.tp; ++j) cp.push_back(range(i + j, i + c.tp * c.cp, c.tp));
    for (std::int64_t i = 0; i < c.ranks; i += stage)
      for (std::int64_t j = 0; j < c.tp * c.cp; ++j) data.push_back(range(i + j, i + stage, c.tp * c.cp));
    for (std::int64_t j = 0; j < stage; ++j) pp.push_back(range(j, c.ranks, stage));
    CHECK(grid.groups(Axis::tp) == tp);
    CHECK(grid.groups(Axis::cp) == cp);
    CHECK(grid.groups(Axis::dp) == data);
    CHECK(grid.groups(Axis::pp) == pp);
  }
}

TEST_CASE("ranks that differ on dp and cp alone sum gradients", "[grid]") {
  const auto groups = [](const ProcessGrid& grid) {
    Groups all;
    for (std::int64_t rank = 0; rank < grid.ranks(); ++rank) {
      const std::vector<std::int64_t> group = grid.gradient_group(rank);
      CHECK(std::find(group.begin(), group.end(), rank) != group.end());
      for (std::size_t i = 1; i < group.size(); ++i) CHECK(group[i] - group[i - 1] == grid.gradient_stride());
      if (group.front() == rank) all.push_back(group);
    }
    return all;
  };
  CHECK(groups(make_grids(sizes(2, 2, 1, 2, 2)).dense) ==
        Groups{{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}});
  ParallelOptions options = sizes(2, 3, 1, 2, 1);
  options.order = "dp-cp-tp-pp";
  CHECK(groups(make_grids(options).dense) == Groups{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}});
  options.order = "cp-tp-dp-pp";
  CHECK_THAT(grid_problem(options), Catch::Contains("between cp and dp"));
  options.tp = 1;  // an axis of one rank is nowhere
  CHECK(grid_problem(options).empty());
  CHECK(groups(make_grids(options).dense) == Groups{{0, 1, 2, 3, 4, 5}});
  CHECK(groups(make_grids(sizes(2, 1, 1, 2, 1)).dense) == Groups{{0, 2}, {1, 3}});
  CHECK(groups(make_grids(sizes(2, 2, 1, 1, 1)).dense) == Groups{{0, 2}, {1, 3}});
}

TEST_CASE("an order is read, written and completed", "[grid]") {
  AxisOrder order = kDefaultOrder;
  std::string problem;
  CHECK(to_string(order) == "tp-cp-ep-dp-pp");
  CHECK(parse_order("pp-dp", order, problem));
  CHECK(to_string(order) == "pp-dp-tp-cp-ep");
  for (const std::string wrong :
       {"", "tp-", "-tp", "tp--pp", "tp-pp-tp", "tp pp", "TP", "tp-cp-ep-dp-pp-xp"}) {
    INFO(wrong);
    problem.clear();
    CHECK_FALSE(parse_order(wrong, order, problem));
    CHECK(to_string(order) == "pp-dp-tp-cp-ep");
    CHECK_FALSE(problem.empty());
  }
}

TEST_CASE("the order decides which ranks are neighbours", "[grid]") {
  const ProcessGrid grid = make_grids(ordered(sizes(2, 1, 1, 2, 2), "tp-pp-dp")).dense;
  CHECK(grid.groups(Axis::pp) == Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}});
  CHECK(grid.groups(Axis::dp) == Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
}

// Megatron-LM's expert groups: the ranks of a stage in the order expert tensor, expert, expert data; the last
// varies slowest.
TEST_CASE("experts are spread over the ranks of a stage and keep its pipeline groups", "[grid]") {
  ParallelOptions whole = sizes(2, 1, 4, 4, 2);
  whole.etp = 1;
  const GridViews views = make_grids(whole);
  CHECK(views.expert.ranks() == 16);
  CHECK(views.expert.groups(Axis::ep) ==
        Groups{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}});
  CHECK(views.expert.group(0, Axis::dp) == std::vector<std::int64_t>{0, 4});
  CHECK(views.expert.groups(Axis::tp).size() == 16);
  CHECK(views.expert.groups(Axis::pp) == views.dense.groups(Axis::pp));
  const GridViews same_tp = make_grids(sizes(2, 1, 2, 4, 2));
  CHECK(same_tp.expert.group(0, Axis::tp) == std::vector<std::int64_t>{0, 1});
  CHECK(same_tp.expert.group(0, Axis::ep) == std::vector<std::int64_t>{0, 2});
  CHECK(same_tp.expert.group(0, Axis::dp) == std::vector<std::int64_t>{0, 4});
}

TEST_CASE("sizes that make no grid are refused", "[grid]") {
  CHECK(grid_problem(sizes(2, 1, 1, 2, 4)).empty());
  CHECK_THAT(grid_problem(sizes(0, 1, 1, 1, 1)), Catch::Contains("at least one rank"));
  CHECK_THAT(grid_problem(sizes(1 << 20, 1 << 20, 1, 1 << 20, 1 << 20)), Catch::Contains("more than 131072"));
  CHECK_THAT(
      grid_problem(sizes(1, 1, 3, 4, 1)),
      Catch::Contains("ep 3 does not divide the 4 ranks that share experts (cp x dp; nearest valid: 2)"));
  CHECK_THAT(grid_problem(ordered(sizes(2, 1, 1, 2, 1), "tp-pp")),
             Catch::Contains("does not name dp, which has 2"));
  CHECK_THAT(grid_problem(ordered(sizes(1, 1, 1, 2, 1), "dp-qp")), Catch::Contains("'dp-qp'"));
  // Dense stages are 2 ranks apart, expert stages 4.
  CHECK_THAT(grid_problem(ordered(sizes(2, 1, 2, 4, 2), "tp-cp-ep-pp-dp")),
             Catch::Contains("same pipeline groups"));
  // Tensor-parallel ranks are 2 apart in dense layers, and neighbours in expert layers, where cp is 1.
  CHECK_THAT(grid_problem(ordered(sizes(2, 2, 2, 1, 1), "cp-tp-ep-dp")), Catch::Contains("put tp first"));
  CHECK(grid_problem(ordered(sizes(2, 2, 2, 1, 1), "tp-cp-ep-dp")).empty());
  CHECK_THROWS_AS(make_grids(sizes(1, 1, 3, 4, 1)), base::SpecError);
  ParallelOptions whole = sizes(2, 1, 3, 4, 1);
  whole.etp = 1;
  CHECK_THAT(grid_problem(whole),
             Catch::Contains(
                 "ep 3 does not divide the 8 ranks that share experts (tp x cp x dp; nearest valid: 2)"));
  whole.etp = 16;
  CHECK(grid_problem(whole) == "etp 16 is neither 1 nor tp");
  whole.etp = -1;
  CHECK_THAT(grid_problem(whole), Catch::Contains("at least one rank"));
}

}  // namespace
}  // namespace trainerd::parallel
