#pragma once

#include <cstdint>

#include "kernels/memory/memory.h"

namespace trainerd::kernels {

/// Sums the aligned pieces of one scratch allocation. `take` returns the offset of a piece.
class ScratchLayout {
 public:
  std::int64_t take(std::int64_t bytes) {
    const std::int64_t begin = total_;
    total_ += align_up(bytes);
    return begin;
  }
  std::int64_t total() const { return total_; }

 private:
  std::int64_t total_ = 0;
};

}  // namespace trainerd::kernels
