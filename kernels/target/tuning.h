#pragma once

#include <cstdint>

namespace trainerd::kernels {

/// Speed against memory on a CUDA device: the same for a rank's plan and its backend.
struct Tuning {
  /// Workspace that a GEMM may take. 32 MiB is what NVIDIA asks for on Hopper; with more the library may
  /// split more of the sums that have few output tiles.
  std::int64_t gemm_workspace_bytes = std::int64_t{32} << 20;
  std::int64_t head_chunk_tokens = 0;  ///< of the head at a time; 0: as many as have 1 GiB of logits

  bool operator==(const Tuning&) const = default;
};

}  // namespace trainerd::kernels
