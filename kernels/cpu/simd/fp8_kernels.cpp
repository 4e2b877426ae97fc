#include <algorithm>

#include "kernels/cpu/simd/vector_functions.h"
#include "kernels/ops/operand.h"
#include "kernels/tensor/fp8.h"

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

// Plain loops over bits: the compiler vectorises them.

inline std::uint32_t magnitude(Bf16 x) { return static_cast<std::uint32_t>(x.bits & 0x7fffu) << 16; }

/// A rounded element has at most 4 significant bits, so bf16 holds it exactly.
inline Bf16 rounded(Bf16 x, const Fp8Scale& scale) {
  const float y = round_to_e4m3(to_float(x) * scale.factor) * scale.inverse;
  return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(y) >> 16)};
}

}  // namespace

void round_fp8_block(const Bf16* x, Bf16* out, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  std::uint32_t largest = 0;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) largest = std::max(largest, magnitude(x[r * stride + c]));
  const Fp8Scale scale = fp8_scale(largest);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) out[r * stride + c] = rounded(x[r * stride + c], scale);
}

void round_fp8_columns(const Bf16* x, Bf16* out, std::int64_t rows, std::int64_t columns,
                       std::int64_t stride) {
  constexpr std::int64_t kColumns = 4 * kLanes;
  for (std::int64_t begin = 0; begin < columns; begin += kColumns) {
    const std::int64_t count = std::min(kColumns, columns - begin);
    std::uint32_t largest[kColumns] = {};
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < count; ++c)
        largest[c] = std::max(largest[c], magnitude(x[r * stride + begin + c]));
    float factor[kColumns], inverse[kColumns];
    for (std::int64_t c = 0; c < count; ++c) {
      const Fp8Scale scale = fp8_scale(largest[c]);
      factor[c] = scale.factor, inverse[c] = scale.inverse;
    }
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < count; ++c)
        out[r * stride + begin + c] = rounded(x[r * stride + begin + c], {factor[c], inverse[c]});
  }
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
