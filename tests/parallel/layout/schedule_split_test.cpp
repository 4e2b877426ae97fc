#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/base/error.h"
#include "parallel/layout/split.h"

using namespace trainerd;
using parallel::ChunkSpan;
using parallel::ModelCosts;
using parallel::ScheduleKind;
using parallel::ScheduleShape;
using parallel::split_problem;

namespace {

/// The cost of the most expensive rank.
double largest(const std::vector<std::int64_t>& counts, const ScheduleShape& shape, const ModelCosts& c) {
  std::vector<double> ranks(static_cast<std::size_t>(shape.stages), 0);
  for (std::size_t i = 0; i < counts.size(); ++i)
    ranks[static_cast<std::size_t>(shape.rank_of(static_cast<int>(i)))] +=
        static_cast<double>(counts[i]) * c.layer + (i == 0 ? c.embedding : 0) +
        (i + 1 == counts.size() ? c.head : 0);
  return *std::max_element(ranks.begin(), ranks.end());
}

/// The cost of the most expensive rank, minimised over all splits.
double best(const ScheduleShape& shape, const ModelCosts& costs) {
  double least = std::numeric_limits<double>::infinity();
  std::vector<std::int64_t> counts(static_cast<std::size_t>(shape.chunks()), 0);
  const std::function<void(std::size_t, std::int64_t)> place = [&](std::size_t i, std::int64_t left) {
    if (i + 1 == counts.size()) {
      counts[i] = left;
      least = std::min(least, largest(counts, shape, costs));
      return;
    }
    for (counts[i] = i == 0 ? 0 : 1; counts[i] <= left; ++counts[i]) place(i + 1, left - counts[i]);
  };
  place(0, costs.layers);
  return least;
}

ScheduleShape chain(int stages) { return {ScheduleKind::one_f_one_b, stages}; }
std::vector<ChunkSpan> split_layers(int stages, const ModelCosts& costs) {
  return parallel::split_layers(chain(stages), costs);
}

std::vector<std::int64_t> counts_of(const std::vector<ChunkSpan>& spans) {
  std::vector<std::int64_t> counts;
  for (const ChunkSpan& span : spans) counts.push_back(span.layers);
  return counts;
}

}  // namespace

TEST_CASE("layers are split so that the most expensive rank is as cheap as possible", "[split]") {
  std::vector<ScheduleShape> shapes;
  for (int stages = 1; stages <= 5; ++stages) shapes.push_back(chain(stages));
  for (int stages = 2; stages <= 3; ++stages) {
    shapes.push_back({ScheduleKind::interleaved, stages, 2});
    for (const ScheduleKind kind : {ScheduleKind::zb_v, ScheduleKind::v_half, ScheduleKind::v_min})
      shapes.push_back({kind, stages, 2});
  }
  for (ModelCosts costs : {ModelCosts{0, 1, 0, 0}, ModelCosts{0, 1, 0.1, 2.5}, ModelCosts{0, 2, 5, 3},
                           ModelCosts{0, 1, 0, 1}, ModelCosts{0, 0.3, 7, 0.1}})
    for (costs.layers = 1; costs.layers <= 12; ++costs.layers)
      for (const ScheduleShape& shape : shapes) {
        if (shape.chunks() > costs.layers + 2) continue;
        INFO(costs.layers << " layers on " << shape.chunks() << " chunks of " << shape.stages
                          << " stages, costs " << costs.layer << " " << costs.embedding << " " << costs.head);
        const std::int64_t layers = costs.layers;
        const auto spans = parallel::split_layers(shape, costs);
        REQUIRE(spans.size() == static_cast<std::size_t>(shape.chunks()));
        CHECK(largest(counts_of(spans), shape, costs) == Approx(best(shape, costs)));
        std::int64_t next = 0;
        for (std::size_t i = 0; i < spans.size(); ++i) {
          CHECK(spans[i].first_layer == next);
          CHECK(spans[i].embedding == (i == 0));
          CHECK(spans[i].head == (i + 1 == spans.size()));
          CHECK((spans[i].layers > 0 || spans[i].embedding || spans[i].head));
          next += spans[i].layers;
        }
        CHECK(next == layers);
      }
}

TEST_CASE("126 layers on 128 chunks leave the embedding and the head alone, as Llama 3 405B", "[split]") {
  const auto spans = split_layers(128, {126, 1, 0.05, 0.7});
  REQUIRE(spans.size() == 128);
  CHECK(spans.front() == ChunkSpan{0, 0, true, false});
  CHECK(spans.back() == ChunkSpan{126, 0, false, true});
  for (std::size_t i = 1; i < 127; ++i)
    CHECK(spans[i] == ChunkSpan{static_cast<std::int64_t>(i) - 1, 1, false, false});
}

TEST_CASE("an even split stays even and later chunks get the remainder", "[split]") {
  CHECK(counts_of(split_layers(4, {12})) == std::vector<std::int64_t>{3, 3, 3, 3});
  CHECK(counts_of(split_layers(4, {10})) == std::vector<std::int64_t>{2, 2, 3, 3});
  CHECK(counts_of(split_layers(4, {10, 1, 0.1, 2.2})) == std::vector<std::int64_t>{3, 3, 3, 1});
  CHECK(counts_of(parallel::split_layers({ScheduleKind::zb_v, 2, 2}, {10})) ==
        std::vector<std::int64_t>{2, 2, 3, 3});
  CHECK(counts_of(parallel::split_layers({ScheduleKind::zb_v, 2, 2}, {10, 1, 0, 1})) ==
        std::vector<std::int64_t>{2, 3, 3, 2});
}

TEST_CASE("empty chunks are refused with the nearest numbers that work", "[split]") {
  CHECK(split_problem(126, 128) == "");
  CHECK(split_problem(0, 2) == "");
  const std::string problem = split_problem(5, 8);
  CHECK(problem.find("at most 7 chunks") != std::string::npos);
  CHECK(problem.find("at least 6 layers") != std::string::npos);
  CHECK_THROWS_AS(split_layers(8, {5}), base::SpecError);
  CHECK(split_problem(5, 7) == "");
  CHECK(split_problem(6, 8) == "");
}
