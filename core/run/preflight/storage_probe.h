#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "io/storage/storage.h"

namespace trainerd::core::run {

/// Writes a file of 1 MiB to a storage, reads it back from where it is stored, compares and removes it, on a
/// thread of its own: a storage that hangs must not stop the caller.
class StorageProbe {
 public:
  static constexpr std::int64_t kBytes = 1 << 20;
  static constexpr double kLimitSeconds = 2;

  using Open = std::function<std::unique_ptr<io::Storage>()>;
  /// `open` is called on that thread. `directory`: what it opens, for people. Files are called `prefix` and
  /// what no other probe has: one that hung earlier may still write its own. Those that are there are
  /// removed.
  StorageProbe(std::string directory, Open open, std::string prefix, double limit_seconds = kLimitSeconds);
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
