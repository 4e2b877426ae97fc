#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/layout/span.h"

namespace trainerd::parallel {

/// Empty if `layers` can be split into `chunks`. Otherwise explains what is wrong and names the nearest valid
/// values. Every chunk must hold a layer, the embedding (the first) or the head (the last).
std::string split_problem(std::int64_t layers, std::int64_t chunks);

/// Splits layers, in model order, over `chunks` chunks so that the most expensive chunk is as cheap as
/// possible. Between equal choices later chunks get more layers, because earlier ones hold more activations.
/// Throws SpecError with the text of `split_problem`. Costs may have any common unit; embedding and head are
/// added to the layers of their chunk.
std::vector<ChunkSpan> split_layers(std::int64_t layers, std::int64_t chunks, double layer_cost,
                                    double embedding_cost, double head_cost);

}  // namespace trainerd::parallel
