#pragma once

#include <cstddef>
#include <cstdint>

namespace trainerd::core::sweep {

/// Number of dimensions in our table of direction numbers.
inline constexpr std::size_t kSobolDimensions = 32;

/// Coordinate `dimension` (from 0) of point `index` of the Sobol sequence, as a fraction of 2^32. Points are
/// in Gray code order (Antonov and Saleev, 1979), so 2^k points from any multiple of 2^k on are a net.
/// Direction numbers: Joe and Kuo, "Constructing Sobol sequences with better two-dimensional projections",
/// SIAM J. Sci. Comput. 30 (2008), file new-joe-kuo-6.21201.
std::uint32_t sobol_bits(std::uint32_t index, std::size_t dimension);

}  // namespace trainerd::core::sweep
