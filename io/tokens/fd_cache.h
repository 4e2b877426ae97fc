#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/fd.h"

namespace trainerd::io {

/// Open descriptors of many files. Closes the least recently used one beyond `limit`, or earlier when the
/// process runs out of descriptors. Allocates at construction only. For one thread.
class FdCache {
 public:
  static constexpr std::size_t kOpenFiles = 64;
  explicit FdCache(std::size_t files, std::size_t limit = kOpenFiles);

  /// Returns the descriptor of file number `file`, valid until the next call. Opens the file if it is closed.
  /// Throws DataError if the file is gone or no longer has `bytes` bytes.
  int get(std::size_t file, const std::string& path, std::int64_t bytes);

 private:
  struct Slot {
    base::UniqueFd fd;
    std::size_t file = 0;
    std::uint64_t last_use = 0;
  };
  Slot* oldest_open();
  Slot& free_slot();
  void close(Slot& slot);

  std::vector<Slot> slots_;
  std::vector<std::int32_t> slot_of_file_;  // -1: closed
  std::uint64_t uses_ = 0;
};

}  // namespace trainerd::io
