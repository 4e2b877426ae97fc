#pragma once

#include <cstdint>

namespace trainerd::kernels {

/// The largest head that RoPE, QK-norm and attention on a CUDA device take.
constexpr std::int64_t kLargestCudaHead = 256;

}  // namespace trainerd::kernels
