#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/rank/dry_run.h"
#include "core/run/wire/messages.h"
#include "core/run/worker/rank_world.h"
#include "io/checkpoint/checkpoint.h"
#include "kernels/base/segment.h"

namespace trainerd::core::run {

/// The snapshots of all ranks of a node for one step, complete in memory.
struct HeldStep {
  std::int64_t step = 0;
  std::int64_t cursor = 0;
  std::int64_t tokens = 0;
  // Indexed by the rank's place in the node:
  std::vector<std::int64_t> segments;
  std::vector<std::int64_t> bytes;
};

/// Snapshot memory of a node's ranks: several segments per rank, which outlive the worker processes.
///
/// A worker never fills the segment of its newest snapshot, nor a segment in use by a writer or partner.
/// After it has reported its newest snapshot, it fills another segment only after a later step in which all
/// ranks of the world took part. So the newest step that all ranks hold is in segments that no rank has begun
/// to overwrite. This is true however long a segment's write to the disk takes: snapshots that stay in memory
/// alternate between two other segments. If some rank has no free segment, no rank takes the snapshot
/// (StepVote::no_room).
class NodeSnapshots {
 public:
  /// `plans` are of the node's ranks from `here.first` on; each rank gets `segments`. Throws CapacityError.
  NodeSnapshots(const NodeRanks& here, const std::vector<rank::DryRun>& plans, std::int64_t segments);

  const std::vector<std::shared_ptr<base::Segment>>& segments(std::int64_t rank) const {
    return of(rank).segments;
  }
  const std::shared_ptr<base::Segment>& segment(std::int64_t rank, std::int64_t index) const {
    return of(rank).segments.at(static_cast<std::size_t>(index));
  }
  /// Sets which slices a rank's snapshots hold (`slices`), and which slices of its state other ranks save
  /// (`borrowed`).
  void describe(std::int64_t rank, std::vector<io::TensorSlice> slices,
                std::vector<io::TensorSlice> borrowed);
  const std::vector<io::TensorSlice>& slices(std::int64_t rank) const { return of(rank).slices; }

  const std::vector<io::TensorSlice>& borrowed(std::int64_t rank) const { return of(rank).borrowed; }

  /// Adds a step. Steps whose segments it has overwritten are removed.
  void add(HeldStep step);
  /// Removes steps after `step`, which will be done again.
  void drop_after(std::int64_t step);
  /// Oldest first.
  const std::vector<HeldStep>& held() const { return held_; }
  const HeldStep* find(std::int64_t step) const;
  /// True if this node's snapshots hold all that its ranks need, that is no slice is saved only by replicas
  /// elsewhere.
  bool self_contained() const;
  /// Descriptions of a step's snapshots, sent to the workers that begin from them.
  std::vector<HeldShard> shards(const HeldStep& step) const;

 private:
  struct Rank {
    std::vector<std::shared_ptr<base::Segment>> segments;
    std::vector<io::TensorSlice> slices, borrowed;
  };
  const Rank& of(std::int64_t rank) const { return ranks_.at(static_cast<std::size_t>(rank - first_)); }
  std::int64_t first_;
  std::vector<Rank> ranks_;
  std::vector<HeldStep> held_;
};

}  // namespace trainerd::core::run
