#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <thread>

#include "io/checkpoint/checkpoint.h"
#include "io/records.h"
#include "kernels/base/segment.h"

namespace trainerd::core {

/// Writes checkpoints on a thread of its own, one after the other, while training goes on.
class CheckpointWriter {
 public:
  /// What is done of a checkpoint. One node does all at once; of several, each writes its shards, and one
  /// completes it when all have.
  enum class Part { all, shards, completion };
  struct Job {
    Part part = Part::all;
    int segment = 0;
    io::TrainingState state = {};          ///< of shards alone: the step
    std::int64_t first_rank = 0;           ///< of `shards`
    std::vector<io::ShardContent> shards = {};  ///< by rank; their bytes stay untouched until the job's result is taken
    std::vector<std::shared_ptr<const base::Segment>> memory = {};  ///< that the bytes lie in
    std::vector<io::WrittenShard> written = {};                     ///< of a completion: those of every rank
    double snapshot_seconds = 0;
    double write_seconds = 0;  ///< that the shards of a completion took
  };
  struct Result {
    Part part = Part::all;
    int segment = 0;
    std::vector<io::WrittenShard> written = {};  ///< of shards alone
    io::CheckpointRecord record = {};
    std::exception_ptr error = nullptr;  ///< set instead of `record` when the write failed
  };

  explicit CheckpointWriter(const io::CheckpointStore& store);
  /// Finishes what is queued, unless abandoned.
  ~CheckpointWriter();

  void enqueue(Job job);
  /// A finished job, if there is one.
  std::optional<Result> take();
  /// Jobs queued or being written.
  std::size_t pending() const;
  /// Readable when `take` has something.
  int event_fd() const;
  /// Waits for nothing any more: what is queued is dropped, and the one being written goes on by itself until
  /// it is done or the process ends; it counts as a checkpoint only if it got as far as its last file.
  void abandon();

 private:
  struct State;  // shared with the thread, which may outlive this
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace trainerd::core
