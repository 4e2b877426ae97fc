#pragma once

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

/// Writes checkpoints on a thread of its own, one after the other, while training goes on. What the disk
/// fails is tried again, with growing waits, until it is written, a newer snapshot replaces it, or nothing
/// could be written for `give_up` seconds.
class CheckpointWriter {
 public:
  /// What is done of a checkpoint. One node does all at once; of several, each writes its shards, and one
  /// completes it when all have. `discard` removes what is there of one that will not be completed, `tag`
  /// marks a complete one as good; neither is tried again.
  enum class Part { all, shards, completion, discard, tag };
  struct Job {
    Part part = Part::all;
    io::TrainingState state = {};  ///< of shards alone: the step
    std::int64_t folder = 1;       ///< the attempt that its folder is of; of `all` at the least
    std::int64_t first_rank = 0;   ///< of `shards`
    /// By rank; their bytes stay untouched until the job's result is taken.
    std::vector<io::ShardContent> shards = {};
    std::vector<std::shared_ptr<const base::Segment>> memory = {};  ///< that the bytes lie in
    std::vector<io::WrittenShard> written = {};                     ///< of a completion: those of every rank
    double snapshot_seconds = 0;
    double write_seconds = 0;  ///< that the shards of a completion took
  };
  enum class Outcome {
    written,
    failed_once,  ///< tried again in `retry_seconds`: not the job's last result
    superseded,   ///< it could not be written, and a newer snapshot takes its place
    given_up,     ///< after the last try
  };
  struct Result {
    Outcome outcome = Outcome::written;
    Part part = Part::all;
    std::int64_t step = 0;
    std::int64_t folder = 1;                     ///< the job's
    std::vector<io::WrittenShard> written = {};  ///< of shards alone
    io::CheckpointRecord record = {};            ///< of what is written
    std::string left_over = {};  ///< of a checkpoint that is complete: why older ones could not be removed
    std::exception_ptr error = nullptr;  ///< of a try that failed
    std::string problem = {};            ///< its text
    double retry_seconds = 0;
    int failures = 0;            ///< tries that failed since something was written last, this one included
    double failing_seconds = 0;  ///< since the first of them
  };

  struct Retries {
    double first_seconds = 0.1;  ///< the first wait; each is twice the one before it
    double most_seconds = 60;
    double give_up_seconds = 3600;
  };

  /// Nothing is written once `allowed` is false: of a leader that was frozen, which may have a successor. It
  /// is called by the writer's thread, which may outlive this.
  CheckpointWriter(
      const io::CheckpointStore& store, const Retries& retries,
      std::function<bool()> allowed = [] { return true; });
  /// Finishes what is queued, unless abandoned; what fails is tried once more.
  ~CheckpointWriter();

  void enqueue(Job job);
  /// A result, if there is one.
  std::optional<Result> take();
  /// Jobs without a last result.
  std::size_t pending() const;
  /// Readable when `take` has something.
  int event_fd() const;
  /// The state of a snapshot is safe in another place: the time to give up begins anew.
  void kept_elsewhere();
  /// Training has ended: what cannot be written within `seconds` from now is given up.
  void end_within(double seconds);
  /// Waits for nothing any more: what is queued is dropped, and the one being written goes on by itself until
  /// it is done or the process ends; it counts as a checkpoint only if it got as far as its last file.
  void abandon();

 private:
  struct State;  // shared with the thread, which may outlive this
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace trainerd::core::run
