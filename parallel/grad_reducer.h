#pragma once

#include <vector>

#include "kernels/backend.h"
#include "parallel/buckets.h"
#include "parallel/communicator.h"

namespace trainerd::parallel {

/// A gradient that is a summand on each rank of a group: heads that several ranks hold, a tied embedding.
struct PartialSum {
  kernels::Tensor grad;
  Communicator* group = nullptr;
  const char* label = "";
};

/// Sums the accumulated gradients over the data-parallel group, bucket by bucket from the last (the order in which backward
/// completes them), each by reduce-scatter. Every ZeRO stage makes its sums this way.
class GradReducer {
 public:
  /// `grads` is the flat gradient of this rank, `parts` its part of every bucket (the same tensor when dp is 1).
  GradReducer(Communicator& dp, const BucketPlan& plan, const kernels::Tensor& grads, const kernels::Tensor& parts,
              std::vector<PartialSum> partial_sums);

  /// All gradients of this rank are complete: starts their reduction.
  void ready(kernels::Stream& stream);
  /// What `stream` does next sees the reduced gradients in `parts`.
  void finish(kernels::Stream& stream);
  /// Brings all parts together in `grads`: for a state that every rank holds whole.
  void gather(kernels::Stream& stream);

 private:
  Communicator& dp_;
  BucketPlan plan_;
  kernels::Tensor grads_, parts_;
  std::vector<PartialSum> partial_sums_;
  std::vector<std::unique_ptr<Work>> pending_;
};

}  // namespace trainerd::parallel
