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
  std::int64_t segment = 0;         ///< the same of every rank
  std::vector<std::int64_t> bytes;  ///< by rank of the node
};

/// The snapshots of a node's ranks: kSnapshots segments of each, which outlive the workers that fill them.
///
/// A worker fills its segments in turn. It fills one again only after a step in which every rank of the world
/// took part after having filled the other; so the newest step that all ranks hold lies in a segment that no
/// rank has begun to overwrite.
class NodeSnapshots {
 public:
  /// `plans` of the node's ranks, from `here.first` on. Throws CapacityError.
  NodeSnapshots(const NodeRanks& here, const std::vector<rank::DryRun>& plans);

  const std::shared_ptr<base::Segment>& segment(std::int64_t rank, std::int64_t index) const {
    return of(rank).segments.at(static_cast<std::size_t>(index));
  }
  /// What the snapshots of a rank of this node hold, and what of its state they do not.
  void describe(std::int64_t rank, std::vector<io::TensorSlice> slices,
                std::vector<io::TensorSlice> borrowed);
  const std::vector<io::TensorSlice>& slices(std::int64_t rank) const { return of(rank).slices; }

  /// What was in its segments before is gone.
  void add(HeldStep step);
  /// Steps after `step` will be done again.
  void drop_after(std::int64_t step);
  /// Oldest first.
  const std::vector<HeldStep>& held() const { return held_; }
  const HeldStep* find(std::int64_t step) const;
  /// Whether the node's snapshots hold all that its own ranks need: what replicas save elsewhere is missing.
  bool self_contained() const;
  /// What workers are told of the snapshots to begin from.
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
