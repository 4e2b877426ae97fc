#pragma once

#include <memory>
#include <optional>

#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"
#include "parallel/data/staging_ring.h"

namespace trainerd::parallel {

/// Dtypes of gradients: in memory, and in messages. With bf16 messages RoundedSum makes the sums of each
/// level. Otherwise messages have the dtype in memory, and the communicator makes the sums.
struct GradDtypes {
  kernels::DType held = kernels::DType::f32;
  kernels::DType wire = kernels::DType::f32;
  bool exchanged() const { return wire == kernels::DType::bf16; }
};

/// A reduce-scatter made of an all-to-all. Each rank rounds its summands (its own part too) to nearest even
/// if they are held in a wider dtype than is sent. It exchanges them, and adds those of its part in fp32, in
/// rank order. The sum is therefore rounded only by its fp32 additions, and once more if it is held in bf16.
/// Its bits are the same over every communicator.
class RoundedSum {
 public:
  /// `elements`: maximum number of summands in progress at once. Allocates that many elements of the wire
  /// dtype for received summands, and the same again for rounded ones if dtypes differ.
  RoundedSum(Communicator& group, const GradDtypes& dtypes, std::int64_t elements, kernels::Backend& backend,
             kernels::Arena& persistent)
      : group_(group),
        backend_(backend),
        ring_(dtypes.wire, elements,
              dtypes.held == dtypes.wire ? StagingRing::Staged::received : StagingRing::Staged::both,
              persistent) {}

  /// Reserves staging memory for `elements` summands; none if there is no room.
  std::optional<StagingRing::Run> take(std::int64_t elements) { return ring_.take(elements); }
  /// `x` has the dtype `held` and one part per rank. It may change after the wait for the returned Work.
  std::unique_ptr<Work> send(kernels::Stream& stream, const kernels::Tensor& x, const StagingRing::Run& run,
                             const CommOptions& options) {
    if (run.sent.defined()) backend_.cast(stream, {x, run.sent});
    return group_.all_to_all(stream, run.sent.defined() ? run.sent : x, run.received, options);
  }
  /// Call after the wait for the Work of `send`: out (+)= this rank's part of the sum. Releases the run.
  void sum(kernels::Stream& stream, const StagingRing::Run& run, const kernels::Tensor& out,
           kernels::WriteMode mode) {
    backend_.sum_parts(stream, {.x = run.received, .out = out, .parts = group_.size(), .mode = mode});
    ring_.give_back(run);
  }

 private:
  Communicator& group_;
  kernels::Backend& backend_;
  StagingRing ring_;
};

}  // namespace trainerd::parallel
