#include "parallel/layout/split.h"

#include <queue>

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

std::vector<ChunkSpan> split_layers(std::int64_t layers, std::int64_t chunks, double layer_cost,
                                    double embedding_cost, double head_cost) {
  if (const std::string problem = split_problem(layers, chunks); !problem.empty())
    throw base::spec_error(problem);
  base::check(layer_cost > 0, "a layer costs something");
  std::vector<ChunkSpan> spans(static_cast<std::size_t>(chunks));
  spans.front().embedding = spans.back().head = true;

  // Gives layers one at a time to the chunk that is cheapest with one more. Costs of chunks only grow, so no
  // other choice has a smaller maximum.
  struct Offer {
    double cost;
    std::size_t chunk;
    // the top of the queue is the cheapest, the latest chunk among equals
    bool operator<(const Offer& other) const {
      return cost != other.cost ? cost > other.cost : chunk < other.chunk;
    }
  };
  const auto offer = [&](std::size_t chunk) {
    const ChunkSpan& span = spans[chunk];
    return Offer{static_cast<double>(span.layers + 1) * layer_cost + (span.embedding ? embedding_cost : 0) +
                     (span.head ? head_cost : 0),
                 chunk};
  };
  std::priority_queue<Offer> offers;
  std::int64_t left = layers;
  for (std::size_t chunk = 0; chunk < spans.size(); ++chunk) {
    if (!spans[chunk].embedding && !spans[chunk].head) {
      spans[chunk].layers = 1;
      --left;
    }
    offers.push(offer(chunk));
  }
  for (; left > 0; --left) {
    const std::size_t chunk = offers.top().chunk;
    offers.pop();
    ++spans[chunk].layers;
    offers.push(offer(chunk));
  }
  std::int64_t first = 0;
  for (ChunkSpan& span : spans) {
    span.first_layer = first;
    first += span.layers;
  }
  return spans;
}

}  // namespace trainerd::parallel
