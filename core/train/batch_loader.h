#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/train/batch_source.h"

namespace trainerd::core::train {

/// Makes the microbatches of pass after pass ahead of time, on a thread of its own: a slow disk delays a step
/// only when it is behind by more than `ahead` microbatches.
class BatchLoader final : public BatchSource {
 public:
  struct Options {
    BatchShape shape;
    std::vector<BatchRequest> requests;  ///< of a pass, in order: Trainer::batch_requests
    std::int64_t passes = 0;             ///< after the last one nothing is read
    std::int64_t samples_per_pass = 0;   ///< the global batch
    std::int64_t ahead = 0;  ///< microbatches; 0: each is made when it is asked for, without a thread
    /// Told of the samples of the next `announced` microbatches before one is made, each once and in the
    /// order of their reads; on the loader's thread. None: no call. Without `ahead` it is not
    /// called.
    std::function<void(std::int64_t sample)> announce = {};
    std::int64_t announced = 0;
  };
  /// `read` counts samples from 0 at the first pass, and may be called by the loader's thread until the
  /// loader is destroyed. What it owns must be safe to use for longer: see the destructor.
  BatchLoader(Options options, ReadSample read);
  /// Ends the thread. One that is inside a read which does not return is left behind, with its own copy of
  /// `read`, after a second: a rank can end while a disk hangs.
  ~BatchLoader() override;
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  /// An error of reading is thrown where its microbatch is asked for, not before.
  const HostBatch& next(const BatchRequest& request) override;

 private:
  struct State;
  static void fill(State& state);
  std::shared_ptr<State> state_;
};

}  // namespace trainerd::core::train
