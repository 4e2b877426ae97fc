#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "io/storage/storage.h"

namespace trainerd::core::run {

/// Writes a file of 1 MiB to a storage, reads it back from where it is stored, compares and removes it, on a
/// thread of its own: a storage that hangs must not stop who asks.
class StorageProbe {
 public:
  static constexpr std::int64_t kBytes = 1 << 20;
  static constexpr double kLimitSeconds = 2;

  using Open = std::function<std::unique_ptr<io::Storage>()>;
  /// `open` is called on that thread. `name`: of the file; one that is there is replaced.
  StorageProbe(Open open, std::string name, double limit_seconds = kLimitSeconds);
  /// Does not wait: a thread that hangs goes on by itself.
  ~StorageProbe();
  StorageProbe(const StorageProbe&) = delete;
  StorageProbe& operator=(const StorageProbe&) = delete;

  /// Waits for the end, and until the limit at most. What did not go well, for people; empty: all did.
  /// Throws CheckpointError when other bytes came back than were written.
  std::string finding();

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< the thread's too
};

}  // namespace trainerd::core::run
