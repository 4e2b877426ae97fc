#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/run/agent/checkpoint_writer.h"

namespace trainerd::core::run {

/// Collects the shards of checkpoints that several nodes write, until every rank's shard is written. Only the
/// leader collects; every node knows which checkpoints were given up.
class CheckpointParts {
 public:
  explicit CheckpointParts(std::int64_t ranks) : ranks_(ranks) {}

  /// Starts a checkpoint on the leader: its training state, and the attempt number of its folder.
  void begin(const io::TrainingState& state, std::int64_t folder) {
    if (dropped_.contains(state.step)) return;
    parts_[state.step].state = state;
    parts_[state.step].folder = folder;
  }
  /// Adds shards that a node has written, of ranks from `first_rank` on. Returns the completion job once the
  /// shards of all ranks and the training state are known.
  std::optional<CheckpointWriter::Job> add(std::int64_t step, std::int64_t first_rank,
                                           std::vector<io::WrittenShard> shards, double snapshot_seconds,
                                           double write_seconds) {
    if (dropped_.contains(step)) return std::nullopt;
    Parts& parts = parts_[step];
    for (io::WrittenShard& shard : shards) parts.shards[first_rank++] = std::move(shard);
    parts.snapshot_seconds = std::max(parts.snapshot_seconds, snapshot_seconds);
    parts.write_seconds = std::max(parts.write_seconds, write_seconds);
    if (!parts.state || static_cast<std::int64_t>(parts.shards.size()) < ranks_) return std::nullopt;
    CheckpointWriter::Job job{
        .part = CheckpointWriter::Part::completion, .state = *parts.state, .folder = parts.folder};
    for (auto& [rank, shard] : parts.shards) job.written.push_back(std::move(shard));
    job.snapshot_seconds = parts.snapshot_seconds;
    job.write_seconds = parts.write_seconds;
    parts_.erase(step);
    return job;
  }
  /// Gives the checkpoint up. Parts that arrive later are ignored.
  void drop(std::int64_t step) {
    parts_.erase(step);
    dropped_.insert(step);
  }
  bool dropped(std::int64_t step) const { return dropped_.contains(step); }
  /// The checkpoint is written after all, from a snapshot that is still held.
  void retake(std::int64_t step) { dropped_.erase(step); }
  /// Forgets checkpoints after `step`: the run goes back to it and does the later steps again.
  void forget_after(std::int64_t step) {
    parts_.erase(parts_.upper_bound(step), parts_.end());
    dropped_.erase(dropped_.upper_bound(step), dropped_.end());
  }
  /// The steps of which some node's shards, or the training state, are missing.
  std::vector<std::int64_t> incomplete() const {
    std::vector<std::int64_t> steps;
    for (const auto& [step, parts] : parts_) steps.push_back(step);
    return steps;
  }
  /// True if no checkpoint is incomplete.
  bool none() const { return parts_.empty(); }

 private:
  struct Parts {
    std::optional<io::TrainingState> state;
    std::int64_t folder = 1;
    std::map<std::int64_t, io::WrittenShard> shards;  ///< by rank
    double snapshot_seconds = 0, write_seconds = 0;   ///< of the slowest node
  };
  std::int64_t ranks_;
  std::map<std::int64_t, Parts> parts_;  ///< by step
  std::set<std::int64_t> dropped_;
};

}  // namespace trainerd::core::run
