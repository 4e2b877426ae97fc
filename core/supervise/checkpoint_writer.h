#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/records.h"
#include "kernels/base/fd.h"

namespace trainerd::core {

/// Writes checkpoints on a thread of its own, one after the other, while training goes on.
class CheckpointWriter {
 public:
  struct Job {
    int segment = 0;
    io::TrainingState state;
    io::ShardContent shard;  ///< its bytes stay untouched until the job's result is taken
    double snapshot_seconds = 0;
  };
  struct Result {
    int segment = 0;
    io::CheckpointRecord record;
    std::exception_ptr error;  ///< set instead of `record` when the write failed
  };

  explicit CheckpointWriter(io::CheckpointStore& store);
  /// Finishes what is queued.
  ~CheckpointWriter();

  void enqueue(Job job);
  /// A finished job, if there is one.
  std::optional<Result> take();
  /// Jobs queued or being written.
  std::size_t pending() const;
  /// Readable when `take` has something.
  int event_fd() const { return event_.get(); }

 private:
  void serve();
  io::CheckpointStore& store_;
  base::UniqueFd event_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_;
  std::deque<Result> results_;
  std::size_t pending_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace trainerd::core
