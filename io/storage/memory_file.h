#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "io/storage/storage.h"
#include "kernels/base/error.h"

namespace trainerd::io {

/// A file over bytes in memory. The bytes must outlive it.
class MemoryFile final : public StoredFile {
 public:
  explicit MemoryFile(std::span<const std::byte> content) : content_(content) {}
  std::int64_t bytes() const override { return static_cast<std::int64_t>(content_.size()); }
  void read(std::int64_t offset, std::span<std::byte> out) const override {
    if (offset < 0 || offset > bytes() || std::cmp_greater(out.size(), bytes() - offset))
      throw base::checkpoint_error("a snapshot in memory is shorter than its header says");
    std::copy_n(content_.data() + offset, out.size(), out.data());
  }

 private:
  std::span<const std::byte> content_;
};

}  // namespace trainerd::io
