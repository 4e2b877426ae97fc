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

/// Blocks of remote files in a local directory, which processes and runs share: those that were not read for
/// the longest time go first. A block has its checksum and appears whole, so a crash or a damaged disk costs
/// a block, never a wrong byte. For several threads.
class BlockCache {
 public:
  /// Makes the directory. `limit_bytes` is of all that is in it. Throws SpecError: it cannot be written, or
  /// is another user's.
  BlockCache(std::string directory, std::int64_t limit_bytes);

  /// Fills `out` with block `number` of the file `id` (32 hex digits). False: it is not there.
  bool load(const std::string& id, std::int64_t number, std::span<std::byte> out);
  /// Keeps a block. One that cannot be written is counted.
  void store(const std::string& id, std::int64_t number, std::span<const std::byte> bytes);

  std::int64_t failures() const { return failures_; }  ///< blocks that could not be written, or were damaged

 private:
  bool write(const std::string& id, std::int64_t number, std::span<const std::byte> bytes);
  std::int64_t make_room(std::int64_t target);
  std::string path_of(const std::string& id, std::int64_t number) const;

  std::string directory_;
  std::int64_t limit_;
  std::mutex mutex_;
  base::UniqueFd usage_;  ///< of the file that has how many bytes are in the directory; locked to change it
  std::atomic<std::int64_t> failures_ = 0, stored_ = 0;
};

/// Where blocks are cached when no one says it: a directory of this user in /var/tmp.
std::string default_cache_directory();

}  // namespace trainerd::io
