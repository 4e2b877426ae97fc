#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/tensor/dtype.h"

namespace trainerd::kernels {

// Host loops over CPU memory for the communicators. Only this code reads the data of a collective.

enum class HostReduce : std::uint8_t { sum, max };

/// out[i] = inputs[0][i] op inputs[1][i] op ..., in that order, accumulated in `accumulate` (f32 or f64; f64
/// tensors in f64, i32 tensors in 64 bits) and rounded once. Each element depends only on its summands, not
/// on `count` or on how the caller divides the range. A NaN counts as the maximum. `out` may be one of the
/// inputs. Throws std::logic_error for u8.
void host_reduce(HostReduce op, DType dtype, DType accumulate, std::span<const std::byte* const> inputs,
                 std::byte* out, std::int64_t count);

inline void host_copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace trainerd::kernels
