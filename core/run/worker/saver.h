#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/rank/device_rank.h"
#include "core/run/wire/messages.h"
#include "core/run/worker/snapshot_segments.h"
#include "core/train/snapshot.h"
#include "core/train/snapshot_copy.h"

namespace trainerd::core::run {

/// Decides when a rank's state is copied and into which segment, and makes the copy.
///
/// A snapshot is filled, and its `SnapshotReady` sent, before the rank takes part in the next update. So when
/// a segment is filled again, every rank of the world has filled its newer snapshot.
class Saver {
 public:
  /// `await` waits for a message of the agent and handles it.
  Saver(std::vector<base::UniqueFd> segments, std::function<void()> await)
      : segments_(std::move(segments)), await_(std::move(await)) {}

  /// Call it before the state is loaded. `beside`: copies overlap the next step, on devices that run
  /// asynchronously to the host.
  void start(const Start& start, const job::JobSpec& job, rank::DeviceRank& rank, bool beside);
  enum class State : std::uint8_t { saved, in_memory };
  /// Training goes on after `step`, from now. A state that is in memory alone is saved if the run stops
  /// before its next step.
  void begin(std::int64_t step, State state);
  const train::Snapshot& snapshot() const { return *snapshot_; }
  SnapshotSegments& segments() { return segments_; }

  /// From now on the run stops with the next one for the disk.
  void drain() { drains_ = true; }

  /// One for the disk after so much time, from now on.
  void save_every(double seconds) { options_.every = {.seconds = seconds}; }

  /// True if a snapshot is due after `step` by its number.
  bool due(std::int64_t step) const;
  /// This rank's vote in `step`. Rank 0's clock decides for all ranks.
  train::StepVote vote(std::int64_t step, bool stop) const;
  /// The step of the last snapshot for the disk.
  std::int64_t saved_step() const { return saved_step_; }

  /// Takes a snapshot of the state after all launched steps; waits for a free segment. Returns the checkpoint
  /// stall in seconds.
  double save(SnapshotReady ready);
  /// True while a copy overlaps the next step.
  bool under_way() const { return copy_ && copy_->under_way(); }
  /// Waits until the copy is complete.
  void finish();
  /// The report of a completed snapshot, once.
  std::optional<SnapshotReady> take_filled();

 private:
  bool due(const io::Interval& interval, std::int64_t step) const {
    return interval.steps > 0 && step % interval.steps == 0;
  }
  bool due(const io::Interval& interval, double since) const;

  SnapshotSegments segments_;
  std::function<void()> await_;
  io::CheckpointOptions options_;
  std::int64_t last_step_ = 0;
  bool decides_ = false;  ///< when time has come
  bool drains_ = false;
  rank::DeviceRank* rank_ = nullptr;
  std::optional<train::Snapshot> snapshot_;
  std::optional<train::SnapshotCopy> copy_;
  std::int64_t saved_step_ = 0;
  double saved_at_ = 0, copied_at_ = 0;  ///< time of the last one for the disk, and of the last one
  std::optional<SnapshotReady> filled_;
};

}  // namespace trainerd::core::run
