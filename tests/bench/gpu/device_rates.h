#pragma once

#include "kernels/backend/backend.h"

namespace trainerd::bench {

/// Bytes per second, read and written, of copies inside the device's memory: the median of several of `bytes`
/// each. Allocates 2 x `bytes` and frees them.
double copy_rate(kernels::Backend& backend, std::int64_t bytes);

/// Bytes per copy for measuring the bandwidth of this kind of device: many times its caches.
inline std::int64_t copy_bytes(const kernels::Target& target) {
  return target.kind == kernels::DeviceKind::cuda ? std::int64_t{1} << 30 : std::int64_t{64} << 20;
}

}  // namespace trainerd::bench
