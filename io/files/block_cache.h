#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/fd.h"

namespace trainerd::io {

/// Caches blocks of remote files in a local directory shared by processes and runs. Evicts the least recently
/// used blocks. Each block has a checksum and is renamed into place, so a crash or a damaged disk loses a
/// block but never gives wrong bytes. Thread-safe.
class BlockCache {
 public:
  /// Makes the directory. `limit_bytes` bounds the total size of its blocks. Throws SpecError if it cannot be
  /// written or belongs to another user.
  BlockCache(std::string directory, std::int64_t limit_bytes);

  /// Fills `out` with block `number` of the file `id` (32 hex digits). Returns false if it is not cached.
  bool load(const std::string& id, std::int64_t number, std::span<std::byte> out);
  /// Stores a block. A failed write is only counted.
  void store(const std::string& id, std::int64_t number, std::span<const std::byte> bytes);

  std::int64_t failures() const { return failures_; }  ///< blocks that could not be written, or were damaged

 private:
  bool write(const std::string& id, std::int64_t number, std::span<const std::byte> bytes);
  std::int64_t make_room(std::int64_t target);
  std::string path_of(const std::string& id, std::int64_t number) const;

  std::string directory_;
  std::int64_t limit_;
  std::mutex mutex_;
  base::UniqueFd usage_;  ///< file with the number of bytes in the directory; locked for updates
  std::atomic<std::int64_t> failures_ = 0, stored_ = 0;
};

/// Default cache directory: one per user in /var/tmp.
std::string default_cache_directory();

}  // namespace trainerd::io
