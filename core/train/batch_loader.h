#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/train/batch_source.h"

namespace trainerd::core::train {

/// Makes the microbatches of consecutive passes ahead of time, on its own thread: a slow disk delays a step
/// only if it is behind by more than `ahead` microbatches.
class BatchLoader final : public BatchSource {
 public:
  /// Consecutive passes over batches of one size.
  struct Passes {
    std::vector<BatchRequest> requests;  ///< requests of one pass, in order: Trainer::batch_requests
    std::int64_t count = 0;
    std::int64_t samples = 0;  ///< of one pass: size of its global batch
  };
  struct Options {
    BatchShape shape;            ///< its `global` is that of each pass
    std::vector<Passes> passes;  ///< nothing is read after the last pass
    std::int64_t ahead = 0;      ///< number of microbatches; 0: made on request, without a thread
    /// Called for the samples of the next `announced` microbatches before one is made, for each sample once
    /// and in reading order, on the loader's thread. None: no calls. Not called with `ahead` 0.
    std::function<void(std::int64_t sample)> announce = {};
    std::int64_t announced = 0;
  };
  /// `read` counts samples from 0 at the first pass. The loader's thread may call it until the loader is
  /// destroyed, and even longer if a read hangs (see the destructor).
  BatchLoader(Options options, ReadSample read);
  /// Ends the thread. If it does not return from a read within a second, it is left behind with its own copy
  /// of `read`, so that a rank can end while a disk hangs.
  ~BatchLoader() override;
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  /// A read error is thrown when its microbatch is requested, not before.
  const HostBatch& next(const BatchRequest& request) override;

 private:
  struct State;
  static void fill(State& state);
  std::shared_ptr<State> state_;
};

}  // namespace trainerd::core::train
