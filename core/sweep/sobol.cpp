#include "core/sweep/sobol.h"

#include <array>
#include <bit>

#include "kernels/base/error.h"

namespace trainerd::core::sweep {
namespace {

constexpr int kBits = 32;

/// A primitive polynomial over GF(2) with its leading and last coefficients (x^2 + x + 1 is 7), and its first
/// direction integers, one per degree.
struct Dimension {
  std::uint32_t polynomial;
  std::array<std::uint32_t, 7> first;
};

constexpr std::array<Dimension, kSobolDimensions> kTable{{
    {1, {1}},  // van der Corput's sequence: every direction integer is 1
    {3, {1}},
    {7, {1, 3}},
    {11, {1, 3, 1}},
    {13, {1, 1, 1}},
    {19, {1, 1, 3, 3}},
    {25, {1, 3, 5, 13}},
    {37, {1, 1, 5, 5, 17}},
    {41, {1, 1, 5, 5, 5}},
    {47, {1, 1, 7, 11, 19}},
    {55, {1, 1, 5, 1, 1}},
    {59, {1, 1, 1, 3, 11}},
    {61, {1, 3, 5, 5, 31}},
    {67, {1, 3, 3, 9, 7, 49}},
    {91, {1, 1, 1, 15, 21, 21}},
    {97, {1, 3, 1, 13, 27, 49}},
    {103, {1, 1, 1, 15, 7, 5}},
    {109, {1, 3, 1, 15, 13, 25}},
    {115, {1, 1, 5, 5, 19, 61}},
    {131, {1, 3, 7, 11, 23, 15, 103}},
    {137, {1, 3, 7, 13, 13, 15, 69}},
    {143, {1, 1, 3, 13, 7, 35, 63}},
    {145, {1, 3, 5, 9, 1, 25, 53}},
    {157, {1, 3, 1, 13, 9, 35, 107}},
    {167, {1, 3, 1, 5, 27, 61, 31}},
    {171, {1, 1, 5, 11, 19, 41, 61}},
    {185, {1, 3, 5, 3, 3, 13, 69}},
    {191, {1, 1, 7, 13, 1, 19, 1}},
    {193, {1, 3, 7, 5, 13, 19, 59}},
    {203, {1, 1, 3, 9, 25, 29, 41}},
    {211, {1, 3, 5, 13, 23, 1, 55}},
    {213, {1, 3, 7, 3, 13, 59, 17}},
}};

/// Direction number k is m_k / 2^(k+1), here shifted to the top of 32 bits.
std::array<std::uint32_t, kBits> directions(const Dimension& d) {
  const int degree = std::bit_width(d.polynomial) - 1;
  std::array<std::uint32_t, kBits> m{};
  for (int k = 0; k < kBits; ++k) {
    const auto at = [&](int i) -> std::uint32_t& { return m[static_cast<std::size_t>(i)]; };
    if (degree == 0) {
      at(k) = 1;
    } else if (k < degree) {
      at(k) = d.first[static_cast<std::size_t>(k)];
    } else {
      // Bratley and Fox, ACM TOMS 14 (1988), equation 2.
      at(k) = at(k - degree) ^ (at(k - degree) << degree);
      for (int i = 1; i < degree; ++i)
        if ((d.polynomial >> (degree - i) & 1u) != 0) at(k) ^= at(k - i) << i;
    }
  }
  for (int k = 0; k < kBits; ++k) m[static_cast<std::size_t>(k)] <<= kBits - 1 - k;
  return m;
}

}  // namespace

std::uint32_t sobol_bits(std::uint32_t index, std::size_t dimension) {
  base::check(dimension < kTable.size(), "a Sobol dimension is in the table");
  const std::array<std::uint32_t, kBits> v = directions(kTable[dimension]);
  const std::uint32_t gray = index ^ (index >> 1);
  std::uint32_t bits = 0;
  for (int k = 0; k < kBits; ++k)
    if ((gray >> k & 1u) != 0) bits ^= v[static_cast<std::size_t>(k)];
  return bits;
}

}  // namespace trainerd::core::sweep
