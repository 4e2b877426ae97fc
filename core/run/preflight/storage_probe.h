#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "io/storage/storage.h"

namespace trainerd::core::run {

/// Writes a file of 1 MiB to a storage, reads it back from the storage itself, compares and removes it. Runs
/// on its own thread: a storage that hangs must not block the caller.
class StorageProbe {
 public:
  static constexpr std::int64_t kBytes = 1 << 20;
  static constexpr double kLimitSeconds = 2;

  using Open = std::function<std::unique_ptr<io::Storage>()>;
  /// `open` is called on that thread. `directory`: the path for messages. The file's name is `prefix` and a
  /// random suffix, because an earlier probe that hung may still write its own file. Existing files with the
  /// prefix are removed.
  StorageProbe(std::string directory, Open open, std::string prefix, double limit_seconds = kLimitSeconds);
  /// Does not wait: a thread that hangs is left behind.
  ~StorageProbe();
  StorageProbe(const StorageProbe&) = delete;
  StorageProbe& operator=(const StorageProbe&) = delete;

  /// Waits for the result until the time limit. Returns the problem as text; empty if there is none. Throws
  /// CheckpointError if other bytes were read than written.
  std::string finding();

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with the thread
};

}  // namespace trainerd::core::run
