#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "kernels/base/segment.h"

namespace trainerd::core::run {

/// Copies checkpoints to the durable tier on its own thread, one after the other. A failing copy is tried
/// again with growing waits until it is done or dropped.
class DurableCopier {
 public:
  /// `shards`: this node's shards. `completion`: the manifest and marker, by one node, after all shards are
  /// copied. `tag`: the good tag of a checkpoint that the tier already holds; not tried again.
  enum class Part : unsigned char { shards, completion, tag };
  struct Job {
    Part part = Part::shards;
    std::int64_t step = 0;
    std::string folder = {};  ///< folder name in the run's directory
    std::string target = {};  ///< folder name in the tier
    std::int64_t first_rank = 0, ranks = 0;
    /// Shards in memory, for when the directory cannot be written; one per rank. Empty: read from the
    /// directory.
    std::vector<io::ShardContent> shards = {};
    std::vector<std::shared_ptr<const base::Segment>> memory = {};  ///< keeps the shards' memory alive
    std::string manifest = {};  ///< for a completion; empty: the directory's manifest
  };
  enum class Outcome : unsigned char {
    copied,
    failed,   ///< tried again in `retry_seconds`; another result follows
    dropped,  ///< after `drop`; its memory is not read any more
    gone,     ///< the run's directory no longer holds the checkpoint
  };
  struct Result {
    Outcome outcome = Outcome::copied;
    Part part = Part::shards;
    std::int64_t step = 0;
    std::string folder = {};
    std::int64_t ranks = 0;  ///< number of shards
    bool from_memory = false;
    std::vector<io::WrittenShard> written = {};  ///< for shards from memory
    std::int64_t bytes = 0;                      ///< bytes sent
    std::string path = {};                       ///< of a completed checkpoint
    std::string left_over = {};                  ///< why older checkpoints could not be removed
    std::string problem = {};                    ///< also why a completion could not copy the tag
    double retry_seconds = 0;                    ///< 0: unknown
    int failures = 0;                            ///< failures of this job, including this one
  };
  struct Options {
    /// Opens the tier: at first use, and again after a job was dropped.
    std::function<io::CheckpointStore()> open;
    std::string owner = {};            ///< claims the tier before the first copy; empty: this node does not
    double rate_bytes_per_second = 0;  ///< 0: no limit
    double first_seconds = 1;  ///< first wait after a failure; each later wait is twice the previous one
    double most_seconds = 60;
  };

  /// `source` is the run's own checkpoint directory.
  DurableCopier(const io::CheckpointStore& source, Options options);
  /// Does not wait. Work under way ends on its own or with the process.
  ~DurableCopier();
  DurableCopier(const DurableCopier&) = delete;
  DurableCopier& operator=(const DurableCopier&) = delete;

  void enqueue(Job job);
  /// Stops all work on a folder within about a second, unless a file system call hangs. Each of its jobs gets
  /// a last result.
  void drop(const std::string& folder);
  std::optional<Result> take();
  /// Returns a failed result once per job if the current job has made no progress for `seconds`: a file
  /// system call may never return.
  std::optional<Result> hung(double seconds);
  /// Readable when `take` has a result.
  int event_fd() const;

 private:
  struct State;  // shared with the thread, which may outlive this object
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace trainerd::core::run
