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

/// When a rank's state is copied, and into which of its segments.
///
/// A snapshot is filled before the rank takes part in the next update, and its `SnapshotReady` is sent by
/// then: so when a segment is filled again, every rank of the world has filled the newer one.
class Saver {
 public:
  /// `await` waits for a message of the agent and handles it.
  Saver(std::vector<base::UniqueFd> segments, std::function<void()> await)
      : segments_(std::move(segments)), await_(std::move(await)) {}

  /// Before the state is loaded. `beside`: copies run beside the next step, where a device does its work
  /// while the host waits.
  void start(const Start& start, const job::JobSpec& job, rank::DeviceRank& rank, bool beside);
  /// Training goes on after `step`, from now.
  void begin(std::int64_t step);
  const train::Snapshot& snapshot() const { return *snapshot_; }
  SnapshotSegments& segments() { return segments_; }

  /// From now on the run stops with the next one for the disk.
  void drain() { drains_ = true; }

  /// One for the disk after so much time, from now on.
  void save_every(double seconds) { options_.every = {.seconds = seconds}; }

  /// Whether one is taken after `step` because of its number.
  bool due(std::int64_t step) const;
  /// What this rank asks for in `step`. Rank 0's clock decides for all.
  train::StepVote vote(std::int64_t step, bool stop) const;
  /// The step of the last snapshot that goes to the disk.
  std::int64_t saved_step() const { return saved_step_; }

  /// Takes a snapshot of the state as it is when the steps on their way are done; waits for a segment to be
  /// free. Gives the seconds that it took.
  double save(SnapshotReady ready);
  /// Whether it is being filled beside the step that follows.
  bool under_way() const { return copy_ && copy_->under_way(); }
  /// Waits until it is filled.
  void finish();
  /// The report of a snapshot that is filled, once.
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
  double saved_at_ = 0, copied_at_ = 0;  ///< the last one for the disk, the last one; or when training began
  std::optional<SnapshotReady> filled_;
};

}  // namespace trainerd::core::run
