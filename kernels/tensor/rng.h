#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace trainerd::kernels {

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): a pure function from a
/// 64-bit key and a 128-bit counter to 128 random bits. It has no state, so a value depends only on key and
/// counter.
constexpr std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_low,
                                              std::uint64_t counter_high) {
  std::array<std::uint32_t, 4> c{
      static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
      static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)};
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0], p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

/// FNV-1a of a name, mixed with a seed into a key. It gives each parameter its own random numbers.
constexpr std::uint64_t hash_name(std::string_view name, std::uint64_t seed) {
  std::uint64_t h = 0xcbf29ce484222325ull ^ (seed * 0x9E3779B97F4A7C15ull);
  for (const char ch : name) h = (h ^ static_cast<unsigned char>(ch)) * 0x100000001b3ull;
  return h ^ (h >> 29);
}

/// Combines two keys into one.
constexpr std::uint64_t mix_keys(std::uint64_t a, std::uint64_t b) {
  const auto bits = philox(a, b, 0);
  return std::uint64_t{bits[1]} << 32 | bits[0];
}

/// Random bits that round element `index` of a logical tensor in step `step`, under the tensor's key: two
/// halves of 16 bits.
constexpr std::uint32_t rounding_bits(std::uint64_t key, std::uint64_t index, std::int64_t step) {
  const auto bits = philox(key, index >> 2, static_cast<std::uint64_t>(step));
  return (index & 2u) != 0 ? ((index & 1u) != 0 ? bits[3] : bits[2])
                           : ((index & 1u) != 0 ? bits[1] : bits[0]);
}

/// 16 bits of element `index` under `key`, for dropout. Eight elements share one Philox call.
constexpr std::uint32_t dropout_bits(const std::array<std::uint32_t, 4>& shared, std::uint64_t index) {
  const std::uint32_t word = (index & 4u) != 0 ? ((index & 2u) != 0 ? shared[3] : shared[2])
                                               : ((index & 2u) != 0 ? shared[1] : shared[0]);
  return (index & 1u) != 0 ? word >> 16 : word & 0xffffu;
}
constexpr std::array<std::uint32_t, 4> dropout_call(std::uint64_t key, std::uint64_t index) {
  return philox(key, index >> 3, 0);
}
/// Elements whose bits are below the threshold are dropped. A rate below 1 never drops all. `dropout_scale`
/// is the factor of the others.
constexpr std::uint32_t dropout_threshold(float rate) {
  return rate < 65535.0f / 65536.0f ? static_cast<std::uint32_t>(rate * 65536.0f + 0.5f) : 65535u;
}
constexpr float dropout_scale(float rate) {
  return 65536.0f / static_cast<float>(65536u - dropout_threshold(rate));
}

/// A uniform number in (0, 1].
constexpr float unit_float(std::uint32_t bits) { return static_cast<float>((bits >> 8) + 1) * 0x1p-24f; }

/// Standard normal value of element `index` under `key`, by Box and Muller. Four values share one Philox
/// call.
inline float normal_at(std::uint64_t key, std::uint64_t index) {
  const auto r = philox(key, index >> 2, 0);
  const std::size_t lane = index & 3u, pair = lane & 2u;
  const float radius = std::sqrt(-2.0f * std::log(unit_float(r[pair])));
  const float angle = 6.28318530717958647692f * unit_float(r[pair + 1]);
  return radius * ((lane & 1u) != 0 ? std::sin(angle) : std::cos(angle));
}

/// Value of element `index` under `key`, uniform on (-1, 1]. Four values share one Philox call.
constexpr float uniform_at(std::uint64_t key, std::uint64_t index) {
  const auto r = philox(key, index >> 2, 0);
  const std::uint32_t bits =
      (index & 2u) != 0 ? ((index & 1u) != 0 ? r[3] : r[2]) : ((index & 1u) != 0 ? r[1] : r[0]);
  return 2.0f * unit_float(bits) - 1.0f;
}

}  // namespace trainerd::kernels
