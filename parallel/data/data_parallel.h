#pragma once

#include <cstdint>
#include <memory>

#include "parallel/comm/communicator.h"

namespace trainerd::parallel {

/// The data-parallel ranks in one level, or in two: `inner` groups of ranks that are near each other, and
/// `outer` groups across them. With two levels a sum is made inside first, so that only one part of it
/// crosses.
struct DataParallelGroups {
  Communicator* inner = nullptr;
  Communicator* outer = nullptr;  ///< null: one level
  bool replicas = false;          ///< hybrid sharding: `inner` shards, and what `outer` joins are replicas
  /// How gradients are reduced and parameters gathered while others are computed.
  Progress gradients = Progress::caller;
  Progress parameters = Progress::caller;

  bool shards_outside() const { return outer != nullptr && !replicas; }
  /// Parts that a bucket is cut into, and which of them is this rank's.
  std::int64_t parts() const { return inner->size() * (shards_outside() ? outer->size() : 1); }
  std::int64_t part() const {
    return shards_outside() ? inner->rank() * outer->size() + outer->rank() : inner->rank();
  }
  /// Pieces that replicas cut a part into, to sum one each.
  std::int64_t pieces() const { return replicas ? outer->size() : 1; }
  /// Of the ranks that hold the same part, this one counts and saves it.
  bool owner() const { return !replicas || outer->rank() == 0; }
  /// The piece of a bucket that one inner rank holds of it, its outer ranks together.
  kernels::Tensor piece(const kernels::Tensor& whole) const {
    const std::int64_t size = whole.numel() / inner->size();
    return whole.rows(inner->rank() * size, size);
  }
};

/// An all_gather of one bucket on its way, in as many operations as there are levels.
class BucketGather {
 public:
  BucketGather(const DataParallelGroups& groups, kernels::Stream& stream, const kernels::Tensor& part,
               const kernels::Tensor& whole, const CommOptions& options);
  /// Issues what follows, if there is anything; awaits nothing that the last operation does.
  void advance(const DataParallelGroups& groups, kernels::Stream& stream);
  void wait(const DataParallelGroups& groups, kernels::Stream& stream);

 private:
  kernels::Tensor whole_;
  CommOptions options_;
  bool outside_;  ///< the operation under way
  std::unique_ptr<Work> work_;
};

}  // namespace trainerd::parallel
