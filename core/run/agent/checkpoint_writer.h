#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/records/records.h"
#include "kernels/base/segment.h"

namespace trainerd::core::run {

/// Writes checkpoints one after the other on its own thread, while training goes on. A failed write is tried
/// again with growing waits until it succeeds, a newer snapshot replaces it, or no write has succeeded for
/// `give_up_seconds`.
class CheckpointWriter {
 public:
  /// The work of one job. A single node does `all`. With several nodes each writes its `shards`, and the
  /// leader does the `completion` when all shards are written. `discard` removes the files of a checkpoint
  /// that will not be completed; `tag` marks a complete one as good. Neither is tried again.
  enum class Part { all, shards, completion, discard, tag };
  struct Job {
    Part part = Part::all;
    io::TrainingState state = {};  ///< for `shards` only the step is used
    std::int64_t folder = 1;       ///< attempt number of the checkpoint's folder; for `all` a lower bound
    std::int64_t first_rank = 0;   ///< first rank of `shards`
    /// Indexed by rank. The bytes must stay unchanged until the job's last result is taken.
    std::vector<io::ShardContent> shards = {};
    std::vector<std::shared_ptr<const base::Segment>> memory = {};  ///< keeps the shards' memory alive
    std::vector<io::WrittenShard> written = {};  ///< for a completion: the shards of all ranks
    double snapshot_seconds = 0;
    double write_seconds = 0;  ///< for a completion: the time that its shards took
    /// Becomes true when the shards are not wanted any more: their write ends soon, superseded.
    std::shared_ptr<const std::atomic<bool>> cancelled = {};
  };
  enum class Outcome {
    written,
    failed_once,  ///< tried again in `retry_seconds`; another result follows
    superseded,   ///< could not be written, and a newer snapshot replaces it; or cancelled
    given_up,     ///< the last try failed
  };
  struct Result {
    Outcome outcome = Outcome::written;
    Part part = Part::all;
    std::int64_t step = 0;
    std::int64_t folder = 1;                     ///< the job's folder
    std::vector<io::WrittenShard> written = {};  ///< for `shards`
    io::CheckpointRecord record = {};            ///< if written
    std::string left_over = {};          ///< why older checkpoints could not be removed; empty if they were
    std::exception_ptr error = nullptr;  ///< of a failed try
    std::string problem = {};            ///< text of `error`
    double retry_seconds = 0;
    int failures = 0;            ///< failed tries since the last success, including this one
    double failing_seconds = 0;  ///< seconds since the first of these failures
  };

  struct Retries {
    double first_seconds = 0.1;  ///< the first wait; each later wait is twice the previous one
    double most_seconds = 60;
    double give_up_seconds = 3600;
  };

  /// `allowed` is called before each write and must return true, else nothing is written: a leader that was
  /// frozen may have a successor. The writer's thread calls it and may outlive this object.
  CheckpointWriter(
      const io::CheckpointStore& store, const Retries& retries,
      std::function<bool()> allowed = [] { return true; });
  /// Finishes the queued jobs, unless `abandon` was called. A failing job is tried once more.
  ~CheckpointWriter();

  void enqueue(Job job);
  /// Returns the oldest result, if there is any.
  std::optional<Result> take();
  /// Number of jobs without a last result.
  std::size_t pending() const;
  /// Readable when `take` has a result.
  int event_fd() const;
  /// Restarts the time to give up: the snapshot's state is safe in another place.
  void kept_elsewhere();
  /// Training has ended. Jobs that cannot be written within `seconds` from now are given up.
  void end_within(double seconds);
  /// Removes the limit of `end_within`, because training continues.
  void go_on();
  /// Sets the flag of a job, queued or under way.
  void cancel(std::atomic<bool>& job);
  /// Drops the queued jobs and does not wait for the current one. Its write goes on until it is done or the
  /// process ends. It counts as a checkpoint only if its last file gets written.
  void abandon();

 private:
  struct State;  // shared with the thread, which may outlive this object
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace trainerd::core::run
