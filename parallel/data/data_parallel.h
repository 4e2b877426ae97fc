#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/comm/communicator.h"

namespace trainerd::parallel {

/// Communicators of the data-parallel ranks, in one level or in two: `inner` joins neighbouring ranks,
/// `outer` joins one rank of each inner group. With two levels a sum is made in `inner` first, so that only
/// one part of it goes through `outer`.
struct DataParallelGroups {
  Communicator* inner = nullptr;
  Communicator* outer = nullptr;  ///< null: one level
  bool replicas = false;          ///< hybrid sharding: `inner` shards, and the ranks of `outer` are replicas
  /// Which thread reduces gradients and gathers parameters (CommOptions::progress).
  Progress gradients = Progress::caller;
  Progress parameters = Progress::caller;

  bool shards_outside() const { return outer != nullptr && !replicas; }
  /// Number of parts of a bucket, and the index of this rank's part.
  std::int64_t parts() const { return inner->size() * (shards_outside() ? outer->size() : 1); }
  std::int64_t part() const {
    return shards_outside() ? inner->rank() * outer->size() + outer->rank() : inner->rank();
  }
  /// Number of pieces that replicas divide a part into; each replica sums one.
  std::int64_t pieces() const { return replicas ? outer->size() : 1; }
  /// True for the one rank that counts and saves a part that several ranks hold.
  bool owner() const { return !replicas || outer->rank() == 0; }
  /// This inner rank's piece of a bucket, which its outer ranks hold together.
  kernels::Tensor piece(const kernels::Tensor& whole) const {
    const std::int64_t size = whole.numel() / inner->size();
    return whole.rows(inner->rank() * size, size);
  }
};

/// A rank's own groups (Group::from_host, Group::to_host) for copies between its device and its host's pinned
/// memory. A copy is an all_gather among one rank.
struct HostLink {
  Communicator *from = nullptr, *to = nullptr;
};

/// An all_gather of one bucket in progress, one operation per level.
class BucketGather {
 public:
  /// `from_host`: `part` is in host memory, and is first copied to its place in `whole`; then there must be a
  /// chain. `chain`: a stream on which each operation follows the one before it, beside later work on
  /// `stream`. Without it the inner level follows when the gather is advanced or waited for.
  BucketGather(const DataParallelGroups& groups, kernels::Stream& stream, const kernels::Tensor& part,
               const kernels::Tensor& whole, const CommOptions& options, Communicator* from_host = nullptr,
               kernels::Stream* chain = nullptr);
  /// Waits for the outer level and issues the inner one. No effect once the inner one is issued.
  void advance(const DataParallelGroups& groups, kernels::Stream& stream);
  void wait(const DataParallelGroups& groups, kernels::Stream& stream);

 private:
  void gather_inside(const DataParallelGroups& groups, kernels::Stream& stream);

  kernels::Tensor whole_;
  CommOptions options_;
  bool outside_;                               ///< true while the inner level is not issued
  std::vector<std::unique_ptr<Work>> before_;  ///< on the chain, before `work_`
  std::unique_ptr<Work> work_;                 ///< null if there is one part, which is copied
};

}  // namespace trainerd::parallel
