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

/// Products of attention's backward, each of 2 FLOPs for a score and an element of its head: of one that
/// makes the scores once, and of our own kernels on a CUDA device.
constexpr double kBackwardProducts = 5, kOwnBackwardProducts = 7;

#define TRAINERD_OPERATOR(name, Args, cuda) Cost cost(const Args&, const Target&);
#include "kernels/ops/operators.def"

/// What an operator call is on a target: for attention with the kernel that runs it there.
#define TRAINERD_OPERATOR(name, Args, cuda) OpClass op_class_on(const Args&, const Target&);
#include "kernels/ops/operators.def"

}  // namespace trainerd::kernels
