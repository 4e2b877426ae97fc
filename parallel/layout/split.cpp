#include "parallel/layout/split.h"

#include <queue>
#include <tuple>

#include "kernels/base/error.h"

namespace trainerd::parallel {

std::string split_problem(std::int64_t layers, std::int64_t chunks) {
  if (chunks < 1) return "a model has at least one pipeline chunk, not " + std::to_string(chunks);
  if (layers < 0) return "a model cannot have " + std::to_string(layers) + " layers";
  if (chunks - 2 <= layers) return {};
  return std::to_string(layers) + (layers == 1 ? " layer does" : " layers do") + " not fill " +
         std::to_string(chunks) +
         " pipeline chunks (pp x virtual_stages), of which all but the first and the last " +
         "hold a layer: take at most " + std::to_string(layers + 2) + " chunks, or at least " +
         std::to_string(chunks - 2) + " layers";
}

std::vector<ChunkSpan> split_layers(const ScheduleShape& shape, const ModelCosts& costs) {
  if (const std::string problem = split_problem(costs.layers, shape.chunks()); !problem.empty())
    throw base::spec_error(problem);
  base::check(costs.layer > 0, "a layer costs something");
  std::vector<ChunkSpan> spans(static_cast<std::size_t>(shape.chunks()));
  spans.front().embedding = spans.back().head = true;
  const auto cost_of = [&](int chunk) {
    const ChunkSpan& span = spans[static_cast<std::size_t>(chunk)];
    return static_cast<double>(span.layers) * costs.layer + (span.embedding ? costs.embedding : 0) +
           (span.head ? costs.head : 0);
  };

  // Gives layers one at a time to the rank that is cheapest with one more, and there to the cheapest chunk.
  // Costs only grow, so no other choice has a smaller maximum.
  struct Offer {
    double rank_cost, cost;
    int chunk;
    // the top of the queue is the cheapest, the latest chunk among equals
    bool operator<(const Offer& other) const {
      if (rank_cost != other.rank_cost) return rank_cost > other.rank_cost;
      return cost != other.cost ? cost > other.cost : chunk < other.chunk;
    }
  };
  const auto offer_of = [&](int rank) {
    Offer best{0, 0, -1};
    for (int i = 0; i < shape.virtual_stages; ++i) {
      const Offer offer{0, cost_of(shape.chunk_of(rank, i)), shape.chunk_of(rank, i)};
      best.rank_cost += offer.cost;
      if (best.chunk < 0 || std::tie(offer.cost, best.chunk) < std::tie(best.cost, offer.chunk))
        best.cost = offer.cost, best.chunk = offer.chunk;
    }
    return best;
  };
  std::int64_t left = costs.layers;
  for (ChunkSpan& span : spans)
    if (!span.embedding && !span.head) span.layers = 1, --left;
  std::priority_queue<Offer> offers;
  for (int rank = 0; rank < shape.stages; ++rank) offers.push(offer_of(rank));
  for (; left > 0; --left) {
    const int chunk = offers.top().chunk;
    offers.pop();
    ++spans[static_cast<std::size_t>(chunk)].layers;
    offers.push(offer_of(shape.rank_of(chunk)));
  }
  std::int64_t first = 0;
  for (ChunkSpan& span : spans) {
    span.first_layer = first;
    first += span.layers;
  }
  return spans;
}

}  // namespace trainerd::parallel
