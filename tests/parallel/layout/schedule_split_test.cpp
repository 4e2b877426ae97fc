#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/base/error.h"
#include "parallel/layout/split.h"

using namespace trainerd;
using parallel::ChunkSpan;
using parallel::split_layers;
using parallel::split_problem;

namespace {

struct Costs {
  double layer, embedding, head;
};

double largest(const std::vector<std::int64_t>& counts, const Costs& c) {
  double most = 0;
  for (std::size_t i = 0; i < counts.size(); ++i)
    most = std::max(most, static_cast<double>(counts[i]) * c.layer + (i == 0 ? c.embedding : 0) +
                              (i + 1 == counts.size() ? c.head : 0));
  return most;
}

/// The cost of the largest chunk, minimised over all splits.
double best(std::int64_t layers, std::size_t chunks, const Costs& costs) {
  double least = std::numeric_limits<double>::infinity();
  std::vector<std::int64_t> counts(chunks, 0);
  const std::function<void(std::size_t, std::int64_t)> place = [&](std::size_t i, std::int64_t left) {
    if (i + 1 == chunks) {
      counts[i] = left;
      least = std::min(least, largest(counts, costs));
      return;
    }
    for (counts[i] = i == 0 ? 0 : 1; counts[i] <= left; ++counts[i]) place(i + 1, left - counts[i]);
  };
  place(0, layers);
  return least;
}

std::vector<std::int64_t> counts_of(const std::vector<ChunkSpan>& spans) {
  std::vector<std::int64_t> counts;
  for (const ChunkSpan& span : spans) counts.push_back(span.layers);
  return counts;
}

}  // namespace

TEST_CASE("layers are split so that the largest chunk is the smallest possible", "[split]") {
  for (const Costs costs :
       {Costs{1, 0, 0}, Costs{1, 0.1, 2.5}, Costs{2, 5, 3}, Costs{1, 0, 1}, Costs{0.3, 7, 0.1}})
    for (std::int64_t layers = 1; layers <= 12; ++layers)
      for (std::int64_t chunks = 1; chunks <= std::min<std::int64_t>(5, layers + 2); ++chunks) {
        INFO(layers << " layers on " << chunks << " chunks, costs " << costs.layer << " " << costs.embedding
                    << " " << costs.head);
        const auto spans = split_layers(layers, chunks, costs.layer, costs.embedding, costs.head);
        REQUIRE(spans.size() == static_cast<std::size_t>(chunks));
        CHECK(largest(counts_of(spans), costs) == Approx(best(layers, spans.size(), costs)));
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
  const auto spans = split_layers(126, 128, 1, 0.05, 0.7);
  REQUIRE(spans.size() == 128);
  CHECK(spans.front() == ChunkSpan{0, 0, true, false});
  CHECK(spans.back() == ChunkSpan{126, 0, false, true});
  for (std::size_t i = 1; i < 127; ++i)
    CHECK(spans[i] == ChunkSpan{static_cast<std::int64_t>(i) - 1, 1, false, false});
}

TEST_CASE("an even split stays even and later chunks get the remainder", "[split]") {
  CHECK(counts_of(split_layers(12, 4, 1, 0, 0)) == std::vector<std::int64_t>{3, 3, 3, 3});
  CHECK(counts_of(split_layers(10, 4, 1, 0, 0)) == std::vector<std::int64_t>{2, 2, 3, 3});
  CHECK(counts_of(split_layers(10, 4, 1, 0.1, 2.2)) == std::vector<std::int64_t>{3, 3, 3, 1});
}

TEST_CASE("empty chunks are refused with the nearest numbers that work", "[split]") {
  CHECK(split_problem(126, 128) == "");
  CHECK(split_problem(0, 2) == "");
  const std::string problem = split_problem(5, 8);
  CHECK(problem.find("at most 7 chunks") != std::string::npos);
  CHECK(problem.find("at least 6 layers") != std::string::npos);
  CHECK_THROWS_AS(split_layers(5, 8, 1, 0, 0), base::SpecError);
  CHECK(split_problem(5, 7) == "");
  CHECK(split_problem(6, 8) == "");
}
