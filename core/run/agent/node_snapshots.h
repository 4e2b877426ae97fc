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

/// The state of every rank of a node after one step, complete in memory.
struct HeldStep {
  std::int64_t step = 0;
  std::int64_t cursor = 0;
  std::int64_t tokens = 0;
  // By rank of the node:
  std::vector<std::int64_t> segments;
  std::vector<std::int64_t> bytes;
  std::int64_t attempt = 1;  ///< of the run, in which it was taken
};

/// The snapshots of a node's ranks: some segments of each, which outlive the workers that fill them.
///
/// A worker never fills the segment of its newest snapshot, nor one that is on its way elsewhere. It fills
/// one only after a step in which every rank of the world took part after having filled the newest, and
/// having said so; so the newest step that all ranks hold lies in segments that no rank has begun to
/// overwrite. That holds however long one segment is being written to the disk: with snapshots that stay in
/// memory two others take turns, and where there is none to fill on some rank, no rank takes the snapshot
/// (StepVote::no_room).
class NodeSnapshots {
 public:
  /// `plans` of the node's ranks, from `here.first` on; `segments` of each. Throws CapacityError.
  NodeSnapshots(const NodeRanks& here, const std::vector<rank::DryRun>& plans, std::int64_t segments);

  const std::vector<std::shared_ptr<base::Segment>>& segments(std::int64_t rank) const {
    return of(rank).segments;
  }
  const std::shared_ptr<base::Segment>& segment(std::int64_t rank, std::int64_t index) const {
    return of(rank).segments.at(static_cast<std::size_t>(index));
  }
  /// What the snapshots of a rank of this node hold, and what of its state they do not.
  void describe(std::int64_t rank, std::vector<io::TensorSlice> slices,
                std::vector<io::TensorSlice> borrowed);
  const std::vector<io::TensorSlice>& slices(std::int64_t rank) const { return of(rank).slices; }

  const std::vector<io::TensorSlice>& borrowed(std::int64_t rank) const { return of(rank).borrowed; }

  /// What was in its segments before is gone.
  void add(HeldStep step);
  /// Steps after `step` will be done again.
  void drop_after(std::int64_t step);
  /// Oldest first.
  const std::vector<HeldStep>& held() const { return held_; }
  const HeldStep* find(std::int64_t step) const;
  /// Whether the node's snapshots hold all that its own ranks need: what replicas save elsewhere is missing.
  bool self_contained() const;
  /// The snapshots that workers begin from, as they are sent.
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
