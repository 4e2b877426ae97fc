#pragma once

#include <cstdint>

namespace trainerd::kernels {

/// Trade-off of speed against memory on a CUDA device. A rank's plan and its backend use the same values.
struct Tuning {
  /// Workspace of a GEMM. NVIDIA recommends 32 MiB on Hopper; with more the library may split the long sums
  /// of weight gradients, which have few output tiles.
  std::int64_t gemm_workspace_bytes = std::int64_t{256} << 20;
  std::int64_t head_chunk_tokens = 0;  ///< tokens per chunk of the head; 0: as many as have 1 GiB of logits

  bool operator==(const Tuning&) const = default;
};

}  // namespace trainerd::kernels
