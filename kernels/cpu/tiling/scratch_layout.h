#pragma once

#include <cstdint>

#include "kernels/memory/memory.h"

namespace trainerd::kernels {

/// Sums pieces of one scratch take, each aligned: `take` returns where the piece begins.
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
