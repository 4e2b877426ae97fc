#pragma once

#include <memory>
#include <optional>

#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"
#include "parallel/data/staging_ring.h"

namespace trainerd::parallel {

/// A reduce-scatter whose summands cross in a narrower dtype: each rank rounds them to nearest even, its own
/// too, exchanges them by all-to-all, and adds those of its part in fp32, in rank order. So the sum is
/// rounded nowhere but in its fp32 additions, and has the same bits over every communicator.
class RoundedSum {
 public:
  /// `elements`: of summands that are under way at once, at most; takes twice as much of `wire`.
  RoundedSum(Communicator& group, kernels::DType wire, std::int64_t elements, kernels::Backend& backend,
             kernels::Arena& persistent)
      : group_(group), backend_(backend), ring_(wire, elements, persistent) {}

  /// Where summands are staged; nothing while there is no room.
  std::optional<StagingRing::Run> take(std::int64_t elements) { return ring_.take(elements); }
  /// `x`, fp32, holds one part for each rank; it may change once `stream` is there.
  std::unique_ptr<Work> send(kernels::Stream& stream, const kernels::Tensor& x, const StagingRing::Run& run,
                             const CommOptions& options) {
    backend_.cast(stream, {x, run.sent});
    return group_.all_to_all(stream, run.sent, run.received, options);
  }
  /// After the wait for what `send` gave: out (+)= this rank's part of the sum, in fp32. The run is free
  /// again.
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
