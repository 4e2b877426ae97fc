#pragma once

// How a block holds a row of logits, so that the cross-entropy reads and writes it once. Depends only on
// shape and target; shared by the launcher (kernels/loss_row.cu) and the cost.

#include <algorithm>
#include <cstdint>

#include "kernels/ops/loss.h"
#include "kernels/target/target.h"

namespace trainerd::kernels::cuda {

/// Threads of a row's block: whole warps, at least 32 threads, two or more vectors per thread.
constexpr int kMaxRowThreads = 512;
constexpr int row_threads(std::int64_t columns) {
  const std::int64_t threads = (columns + 511) / 512 * 32;
  return static_cast<int>(std::clamp<std::int64_t>(threads, 32, kMaxRowThreads));
}

/// Vectors of 16 bytes per thread in registers, in addition to those in shared memory: 48 registers.
constexpr int kRegisterVectors = 12;

/// Dynamic shared memory that this kernel uses per block. Limits: 227 KB on 9.0 and 10.x, 163 KB on 8.0, 99
/// KB on 8.6, 8.9 and 12.0 (CUDA C++ Programming Guide, table of technical specifications).
constexpr int row_shared_bytes(int sm_version) {
  if (sm_version == 90 || (sm_version >= 100 && sm_version < 120)) return 224 << 10;
  return sm_version == 80 ? 160 << 10 : 96 << 10;
}

/// Vectors per thread, in shared memory and in registers.
struct LossRow {
  int threads = 0, shared = 0, registers = 0;
  bool held = false;  ///< the row fits
  LossRow(std::int64_t columns, DType dtype, const Target& target) : threads(row_threads(columns)) {
    const std::int64_t bytes = columns * size_of(dtype), step = std::int64_t{16} * threads;
    const std::int64_t each = (bytes + step - 1) / step;
    shared = static_cast<int>(std::min<std::int64_t>(each, row_shared_bytes(target.sm_version) / step));
    held = bytes % 16 == 0 && each - shared <= kRegisterVectors;
    registers = held ? static_cast<int>(each) - shared : 0;
  }
};

}  // namespace trainerd::kernels::cuda
