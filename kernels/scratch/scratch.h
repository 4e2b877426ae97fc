#pragma once

// Scratch of every operator, computed on the host without a device library. The meta backend and the real
// backends use the same functions, so they agree.

#include <cstdint>

#include "kernels/ops/ops.h"
#include "kernels/target/target.h"

namespace trainerd::kernels {

/// Bytes of the target's prepared form of a weight for a role; 0 if it has none.
std::int64_t prepared_bytes(const PrepareWeight&, const Target&);

/// Scratch of one call, on the stream's stack. An operator without an overload needs none.
template <class Args>
std::int64_t scratch_bytes(const Args&, const Target&) {
  return 0;
}
std::int64_t scratch_bytes(const PrepareWeight&, const Target&);
std::int64_t scratch_bytes(const LinearFprop&, const Target&);
std::int64_t scratch_bytes(const LinearDgrad&, const Target&);
std::int64_t scratch_bytes(const LinearWgrad&, const Target&);
std::int64_t scratch_bytes(const LinearSwiglu&, const Target&);
std::int64_t scratch_bytes(const LinearDgradSwiglu&, const Target&);
std::int64_t scratch_bytes(const EmbeddingBackward&, const Target&);
std::int64_t scratch_bytes(const AddNormBackward&, const Target&);
std::int64_t scratch_bytes(const QkNormRopeBackward&, const Target&);
std::int64_t scratch_bytes(const AttentionForward&, const Target&);
std::int64_t scratch_bytes(const AttentionBackward&, const Target&);
std::int64_t scratch_bytes(const SortExperts&, const Target&);
std::int64_t scratch_bytes(const ExpertBiasBackward&, const Target&);
/// The CPU runs one expert at a time: the scratch of a linear layer if one expert has all rows.
std::int64_t scratch_bytes(const ExpertFprop&, const Target&);
std::int64_t scratch_bytes(const ExpertDgrad&, const Target&);
std::int64_t scratch_bytes(const ExpertWgrad&, const Target&);
std::int64_t scratch_bytes(const Normalise&, const Target&);
std::int64_t scratch_bytes(const OrderedSum&, const Target&);
std::int64_t scratch_bytes(const TensorHash&, const Target&);

}  // namespace trainerd::kernels
