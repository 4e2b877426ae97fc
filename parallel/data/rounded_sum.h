#pragma once

#include <memory>
#include <optional>

#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"
#include "parallel/data/staging_ring.h"

namespace trainerd::parallel {

/// Of gradients: as they are held, and as they cross to other ranks. With bf16 on the way each level's sums
/// are made by RoundedSum; else gradients cross as they are held, and the communicator makes the sums.
struct GradDtypes {
  kernels::DType held = kernels::DType::f32;
  kernels::DType wire = kernels::DType::f32;
  bool exchanged() const { return wire == kernels::DType::bf16; }
};

/// A reduce-scatter made of an all-to-all: each rank rounds its summands to nearest even where they are held
/// wider than they cross, its own too, exchanges them, and adds those of its part in fp32, in rank order. So
/// the sum is rounded nowhere but in its fp32 additions, and once more where it is held in bf16; it has the
/// same bits over every communicator.
class RoundedSum {
 public:
  /// `elements`: of summands that are under way at once, at most. Takes as much of the wire's dtype for those
  /// that arrive, and again for those that are rounded.
  RoundedSum(Communicator& group, const GradDtypes& dtypes, std::int64_t elements, kernels::Backend& backend,
             kernels::Arena& persistent)
      : group_(group),
        backend_(backend),
        ring_(dtypes.wire, elements,
              dtypes.held == dtypes.wire ? StagingRing::Staged::received : StagingRing::Staged::both,
              persistent) {}

  /// Where summands are staged; nothing while there is no room.
  std::optional<StagingRing::Run> take(std::int64_t elements) { return ring_.take(elements); }
  /// `x`, as gradients are held, holds one part for each rank; it may change once what is given was awaited.
  std::unique_ptr<Work> send(kernels::Stream& stream, const kernels::Tensor& x, const StagingRing::Run& run,
                             const CommOptions& options) {
    if (run.sent.defined()) backend_.cast(stream, {x, run.sent});
    return group_.all_to_all(stream, run.sent.defined() ? run.sent : x, run.received, options);
  }
  /// After the wait for what `send` gave: out (+)= this rank's part of the sum. The run is free again.
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
