#pragma once

// Cost of every operator, by the host alone, with no device library: what the meta world records.

#include <cstdint>

#include "kernels/ops/ops.h"
#include "kernels/target/target.h"

namespace trainerd::kernels {

/// What one operator call does. FLOPs count multiply and add apart and, for attention, only what the mask leaves.
/// Bytes are those that must cross the device's memory at least once: inputs read plus outputs written.
struct Cost {
  double flops = 0;
  double bytes = 0;
};

Cost cost(const PrepareWeight&, const Target&);
Cost cost(const LinearFprop&, const Target&);
Cost cost(const LinearDgrad&, const Target&);
Cost cost(const LinearWgrad&, const Target&);
Cost cost(const LinearSwiglu&, const Target&);
Cost cost(const LinearDgradSwiglu&, const Target&);
Cost cost(const GluForward&, const Target&);
Cost cost(const GluBackward&, const Target&);
Cost cost(const GeluForward&, const Target&);
Cost cost(const GeluBackward&, const Target&);
Cost cost(const EmbeddingForward&, const Target&);
Cost cost(const EmbeddingBackward&, const Target&);
Cost cost(const AddNormForward&, const Target&);
Cost cost(const AddNormBackward&, const Target&);
Cost cost(const RopeTable&, const Target&);
Cost cost(const QkNormRopeForward&, const Target&);
Cost cost(const QkNormRopeBackward&, const Target&);
Cost cost(const AttentionForward&, const Target&);
Cost cost(const AttentionBackward&, const Target&);
Cost cost(const CeStats&, const Target&);
Cost cost(const CeRescale&, const Target&);
Cost cost(const CeFinish&, const Target&);
Cost cost(const Add&, const Target&);
Cost cost(const Scale&, const Target&);
Cost cost(const Cast&, const Target&);
Cost cost(const BlockSquareSums&, const Target&);
Cost cost(const TotalSquareSum&, const Target&);
Cost cost(const OrderedSum&, const Target&);
Cost cost(const TensorHash&, const Target&);
Cost cost(const StepControl&, const Target&);
Cost cost(const AdamwUpdate&, const Target&);
Cost cost(const InitNormal&, const Target&);

}  // namespace trainerd::kernels
