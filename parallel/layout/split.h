#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/layout/span.h"

namespace trainerd::parallel {

/// Empty when `layers` can be split into `chunks`; otherwise what is wrong and the nearest values that are
/// right. Every chunk holds something: a layer, the embedding (the first) or the head (the last).
std::string split_problem(std::int64_t layers, std::int64_t chunks);

/// Layers in model order on `chunks` chunks, so that the most expensive chunk is as cheap as it can be, and
/// the next ones after it too; of equal ones later chunks get more, as earlier ones hold more activations.
/// Throws SpecError with the text of `split_problem`. Costs are in any one unit; embedding and head are on
/// top of their chunk's layers.
std::vector<ChunkSpan> split_layers(std::int64_t layers, std::int64_t chunks, double layer_cost,
                                    double embedding_cost, double head_cost);

}  // namespace trainerd::parallel
