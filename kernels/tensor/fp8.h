#pragma once

// Numbers of the FP8 format E4M3 (Micikevicius et al., arXiv 2209.05433: 4 bits of exponent, 3 of mantissa,
// no infinity) and the scales of blocks of them.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace trainerd::kernels {

constexpr float kLargestE4m3 = 448.0f;

/// A power of two and its inverse.
struct Fp8Scale {
  float factor = 1, inverse = 1;
};

/// The largest power of two with which a block's largest magnitude, given by its fp32 bits without the sign,
/// is at most 448. NaN if that is not finite. At most 2^110, so that every product with the inverse is a
/// normal number.
constexpr Fp8Scale fp8_scale(std::uint32_t largest_bits) {
  const auto exponent = static_cast<std::int32_t>(largest_bits >> 23);
  // 448 is 1.75 x 2^8.
  const std::int32_t beyond = (largest_bits & 0x7fffffu) > 0x600000u ? 1 : 0;
  const std::int32_t wanted = 8 + 127 - exponent - beyond, power = wanted < 110 ? wanted : 110;
  if (largest_bits >= 0x7f800000u)
    return {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::quiet_NaN()};
  return {std::bit_cast<float>(static_cast<std::uint32_t>(127 + power) << 23),
          std::bit_cast<float>(static_cast<std::uint32_t>(127 - power) << 23)};
}

/// x, of magnitude up to 448, rounded to the nearest E4M3 number, ties to even. A NaN stays a NaN.
constexpr float round_to_e4m3(float x) {
  // Adding and subtracting 1.5 x 2^20 of the binade of x, at least of that of the smallest normal number
  // 2^-6, leaves 3 bits behind the leading one.
  const std::uint32_t binade = std::bit_cast<std::uint32_t>(x) & 0x7f800000u;
  const std::uint32_t least = 0x3c800000u;
  const float shift = std::bit_cast<float>(((binade > least ? binade : least) + (20u << 23)) | 0x400000u);
  return (x + shift) - shift;
}

/// The bits of an E4M3 number, in the lowest byte.
constexpr std::uint32_t e4m3_bits(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x), sign = bits >> 24 & 0x80u,
                      magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  // Below the smallest normal number 2^-6 in units of 2^-9.
  if (magnitude < 0x3c800000u)
    return sign | static_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 512.0f);
  return sign | ((magnitude >> 20) - (120u << 3));
}

}  // namespace trainerd::kernels
