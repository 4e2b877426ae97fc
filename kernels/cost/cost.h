#pragma once

// Cost of every operator, by the host alone, with no device library: what the meta world records.

#include <cstdint>

#include "kernels/ops/ops.h"
#include "kernels/target/target.h"

namespace trainerd::kernels {

/// What one operator call does. FLOPs count multiply and add apart and, for attention, only what the mask
/// leaves. Bytes are those that must cross the device's memory at least once: inputs read plus outputs
/// written.
struct Cost {
  double flops = 0;
  double bytes = 0;
};

#define TRAINERD_OPERATOR(name, Args, cuda) Cost cost(const Args&, const Target&);
#include "kernels/ops/operators.def"

}  // namespace trainerd::kernels
