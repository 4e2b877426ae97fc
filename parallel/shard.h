#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace trainerd::parallel {

/// What an axis does to a tensor.
enum class Along : std::uint8_t {
  same,     ///< every rank of the axis holds all of it
  split,    ///< cut along `dim` into `segments` runs, each of which is cut evenly (query, key, value; gate, up)
  partial,  ///< every rank holds a summand: its gradient needs a sum over the axis
};

struct AxisRule {
  Along along = Along::same;
  int dim = 0;
  std::vector<std::int64_t> segments;  ///< logical sizes along `dim`; empty: one segment
};

/// How a logical tensor lies on the ranks. The one source for initialisation, checkpoints, resharding, the norm's
/// de-duplication and hashing. Files hold logical tensors; `padded` is what the ranks compute on.
struct ShardSpec {
  kernels::Shape logical;
  kernels::Shape padded;  ///< equal to `logical` but for a vocabulary padded to divide by tp
  AxisRule tp;
  bool owner = true;      ///< this rank saves it and counts it in the norm (one of the holders of a tied or replicated one)
  bool trainable = true;
};

}  // namespace trainerd::parallel
