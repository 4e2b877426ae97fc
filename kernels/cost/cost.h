#pragma once

// Cost of every operator, computed on the host without a device library. The meta backend records it.

#include <cstdint>

#include "kernels/ops/ops.h"
#include "kernels/target/target.h"

namespace trainerd::kernels {

/// Work of one operator call. FLOPs count multiply and add separately and, for attention, only unmasked
/// scores. Bytes are those that must be read from or written to memory at least once: inputs plus outputs.
struct Cost {
  double flops = 0;
  double bytes = 0;
  double host_bytes = 0;  ///< those of `bytes` that cross the link between a CUDA device and its host
};

/// Matrix products of attention's backward, each of 2 FLOPs per score and element of a head.
struct AttentionProducts {
  double keys = 0;    ///< with elements of a query or key head: scores, dQ, dK
  double values = 0;  ///< with elements of a value head: gradient of the weights, dV
};
/// `kBackwardProducts`: of kernels that compute the scores once; `kOwnBackwardProducts`: of our own kernels
/// on a CUDA device.
constexpr AttentionProducts kBackwardProducts{3, 2}, kOwnBackwardProducts{4, 3};

#define TRAINERD_OPERATOR(name, Args, cuda) Cost cost(const Args&, const Target&);
#include "kernels/ops/operators.def"

/// The class of an operator call on a target; for attention it includes the kernel that runs there.
#define TRAINERD_OPERATOR(name, Args, cuda) OpClass op_class_on(const Args&, const Target&);
#include "kernels/ops/operators.def"

}  // namespace trainerd::kernels
