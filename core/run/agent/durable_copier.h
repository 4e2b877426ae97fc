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

/// Copies checkpoints to the durable tier on a thread of its own, one after the other. What fails is tried
/// again, with growing waits, until it is done or dropped.
class DurableCopier {
 public:
  /// This node's shards of a checkpoint, or for all nodes its manifest and marker, once every shard is there.
  /// Or the tag of a good one, on one that the tier has already: it is not tried again.
  enum class Part : unsigned char { shards, completion, tag };
  struct Job {
    Part part = Part::shards;
    std::int64_t step = 0;
    std::string folder = {};  ///< its name in the run's directory
    std::string target = {};  ///< and in the tier
    std::int64_t first_rank = 0, ranks = 0;
    /// From memory, where the directory cannot be written: of `ranks`. Empty: from the directory.
    std::vector<io::ShardContent> shards = {};
    std::vector<std::shared_ptr<const base::Segment>> memory = {};  ///< that the bytes lie in
    std::string manifest = {};  ///< of a completion; empty: the directory's
  };
  enum class Outcome : unsigned char {
    copied,
    failed,   ///< tried again in `retry_seconds`: not the job's last result
    dropped,  ///< as `drop` asked; its memory is not read any more
    gone,     ///< the directory does not hold it any more
  };
  struct Result {
    Outcome outcome = Outcome::copied;
    Part part = Part::shards;
    std::int64_t step = 0;
    std::string folder = {};
    std::int64_t ranks = 0;  ///< shards
    bool from_memory = false;
    std::vector<io::WrittenShard> written = {};  ///< of shards from memory
    std::int64_t bytes = 0;                      ///< that were sent
    std::string path = {};                       ///< of a completion
    std::string left_over = {};                  ///< why older ones could not be removed
    std::string problem = {};                    ///< also of a tag that a completion could not copy
    double retry_seconds = 0;                    ///< 0: it is not known when
    int failures = 0;                            ///< of the job, this one included
  };
  struct Options {
    /// Opens the tier; again after a job was dropped.
    std::function<io::CheckpointStore()> open;
    std::string owner = {};  ///< that the tier is claimed for before the first copy; empty: not by this node
    double rate_bytes_per_second = 0;  ///< 0: no limit
    double first_seconds = 1;          ///< the first wait after a failure; each is twice the one before it
    double most_seconds = 60;
  };

  /// `source` is the run's own directory.
  DurableCopier(const io::CheckpointStore& source, Options options);
  /// Waits for nothing: what is under way ends by itself, or with the process.
  ~DurableCopier();
  DurableCopier(const DurableCopier&) = delete;
  DurableCopier& operator=(const DurableCopier&) = delete;

  void enqueue(Job job);
  /// Ends all work on a folder within about a second, unless it hangs in a file system: each of its jobs has
  /// a last result.
  void drop(const std::string& folder);
  std::optional<Result> take();
  /// A result for the present job when it has made no progress for so many seconds, once a job: a call of the
  /// file system may not return.
  std::optional<Result> hung(double seconds);
  /// Readable when `take` has something.
  int event_fd() const;

 private:
  struct State;  // shared with the thread, which may outlive this
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace trainerd::core::run
