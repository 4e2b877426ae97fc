#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/layout/schedule_shape.h"
#include "parallel/layout/span.h"

namespace trainerd::parallel {

/// Empty if `layers` can be split into `chunks`. Otherwise explains what is wrong and names the nearest valid
/// values. Every chunk must hold a layer, the embedding (the first) or the head (the last).
std::string split_problem(std::int64_t layers, std::int64_t chunks);

/// Relative costs of a model's parts, in any common unit.
struct ModelCosts {
  std::int64_t layers = 0;
  double layer = 1;
  double embedding = 0;
  double head = 0;
};

/// Splits layers, in model order, over the chunks of a pipeline so that the chunks of the most expensive rank
/// together are as cheap as possible, and each rank's most expensive chunk is. Between equal choices later
/// chunks get more layers, because earlier ones hold more activations. Embedding and head are added to the
/// layers of their chunk. Throws SpecError with the text of `split_problem`.
std::vector<ChunkSpan> split_layers(const ScheduleShape& shape, const ModelCosts& costs);

}  // namespace trainerd::parallel
