#include "core/run/agent/node_snapshots.h"

#include <algorithm>
#include <utility>

namespace trainerd::core::run {

NodeSnapshots::NodeSnapshots(const NodeRanks& here, const std::vector<rank::DryRun>& plans,
                             std::int64_t segments)
    : first_(here.first) {
  for (std::int64_t i = 0; i < here.count; ++i) {
    Rank& rank = ranks_.emplace_back();
    for (std::int64_t s = 0; s < segments; ++s)
      rank.segments.push_back(std::make_shared<base::Segment>(
          base::Segment::create("trainerd-snapshot-" + std::to_string(first_ + i) + "-" + std::to_string(s),
                                plans.at(static_cast<std::size_t>(i)).snapshot_bytes)));
  }
}

void NodeSnapshots::describe(std::int64_t rank, std::vector<io::TensorSlice> slices,
                             std::vector<io::TensorSlice> borrowed) {
  Rank& r = ranks_.at(static_cast<std::size_t>(rank - first_));
  r.slices = std::move(slices);
  r.borrowed = std::move(borrowed);
}

void NodeSnapshots::add(HeldStep step) {
  const auto overwritten = [&](const HeldStep& h) {
    for (std::size_t rank = 0; rank < h.segments.size(); ++rank)
      if (h.segments[rank] == step.segments.at(rank)) return true;
    return false;
  };
  std::erase_if(held_, [&](const HeldStep& h) { return h.step >= step.step || overwritten(h); });
  held_.push_back(std::move(step));
}

void NodeSnapshots::drop_after(std::int64_t step) {
  std::erase_if(held_, [&](const HeldStep& h) { return h.step > step; });
}

const HeldStep* NodeSnapshots::find(std::int64_t step) const {
  const auto found =
      std::find_if(held_.begin(), held_.end(), [&](const HeldStep& h) { return h.step == step; });
  return found == held_.end() ? nullptr : &*found;
}

bool NodeSnapshots::self_contained() const {
  std::vector<io::TensorSlice> all;
  for (const Rank& rank : ranks_) all.insert(all.end(), rank.slices.begin(), rank.slices.end());
  for (const Rank& rank : ranks_)
    for (const io::TensorSlice& box : rank.borrowed)
      if (!io::covers(all, box)) return false;
  return true;
}

std::vector<HeldShard> NodeSnapshots::shards(const HeldStep& step) const {
  std::vector<HeldShard> shards;
  for (std::size_t i = 0; i < ranks_.size(); ++i) shards.push_back({step.bytes.at(i), ranks_[i].slices});
  return shards;
}

}  // namespace trainerd::core::run
