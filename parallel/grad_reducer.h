#pragma once

#include "kernels/backend.h"
#include "parallel/communicator.h"

namespace trainerd::parallel {

/// Sums the accumulated gradients over the data-parallel group. One bucket, reduced after the last backward: buckets that
/// overlap with backward, and shards of them, come with more than one data-parallel rank.
class GradReducer {
 public:
  /// `grads` is the flat gradient of this rank; both outlive the reducer.
  GradReducer(Communicator& dp, const kernels::Tensor& grads) : dp_(dp), grads_(grads) {}

  /// The gradients of this rank are complete: starts their reduction.
  void ready(kernels::Stream& stream);
  /// What `stream` does next sees the reduced gradients.
  void finish(kernels::Stream& stream);

 private:
  Communicator& dp_;
  kernels::Tensor grads_;
  std::unique_ptr<Work> pending_;
};

}  // namespace trainerd::parallel
