#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace trainerd::kernels {

enum class DType : std::uint8_t { f32, bf16, i32, f64, u8, f16 };

/// Bytes of one element.
constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::f64: return 8;
    case DType::u8: return 1;
  }
  return 0;
}

/// "fp32", "bf16", "int32", "fp64", "uint8", "fp16": the names in job specs, plans and manifests.
constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::i32: return "int32";
    case DType::f64: return "fp64";
    case DType::u8: return "uint8";
    case DType::f16: return "fp16";
  }
  return "?";
}

/// Inverse of `name_of`; none for an unknown name.
constexpr std::optional<DType> parse_dtype(std::string_view name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::f64, DType::u8, DType::f16})
    if (name == name_of(dtype)) return dtype;
  return std::nullopt;
}

/// True for the dtypes of activations, weights and gradients: fp32, bf16 and fp16.
constexpr bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

/// Brain float: the upper half of an fp32. Storage only; arithmetic is done in float.
struct Bf16 {
  std::uint16_t bits = 0;
};

constexpr float to_float(Bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
/// Rounds to nearest, ties to even; a NaN stays a NaN.
constexpr Bf16 to_bf16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return Bf16{static_cast<std::uint16_t>((u >> 16) | 0x40u)};
  return Bf16{static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

/// Rounds up if adding these 16 random bits to the lower half of x carries. Values that are not finite are
/// rounded to nearest.
constexpr Bf16 to_bf16(float x, std::uint32_t random16) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7f800000u) == 0x7f800000u) return to_bf16(x);
  return Bf16{static_cast<std::uint16_t>((u + random16) >> 16)};
}

/// IEEE half precision: 5 bits of exponent, 10 of fraction, largest finite value 65504. Storage only.
struct Fp16 {
  std::uint16_t bits = 0;
};

constexpr float to_float(Fp16 x) {
  const std::uint32_t sign = (x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest >= 0x400u) return std::bit_cast<float>(sign | ((rest << 13) + (112u << 23)));
  const float magnitude = static_cast<float>(rest) * 0x1p-24f;  // denormals, exactly
  return sign != 0 ? -magnitude : magnitude;
}
/// Rounds to nearest, ties to even; overflows to infinity; a NaN stays a NaN.
constexpr Fp16 to_fp16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x), sign = u >> 16 & 0x8000u, rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return Fp16{static_cast<std::uint16_t>(sign | 0x7e00u | (rest >> 13 & 0x3ffu))};
  if (rest >= 0x47800000u) return Fp16{static_cast<std::uint16_t>(sign | 0x7c00u)};
  if (rest < 0x38800000u) {
    // Denormals: adding 0.5 leaves a unit in the last place of 2^-24.
    const float shifted = std::bit_cast<float>(rest) + 0.5f;
    return Fp16{static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
  }
  const std::uint32_t rounded = rest - (112u << 23) + 0xfffu + (rest >> 13 & 1u);
  return Fp16{static_cast<std::uint16_t>(sign | rounded >> 13)};
}

/// `x` rounded to T.
template <class T>
constexpr T rounded_to(float x);
template <>
constexpr float rounded_to<float>(float x) {
  return x;
}
template <>
constexpr Bf16 rounded_to<Bf16>(float x) {
  return to_bf16(x);
}
template <>
constexpr Fp16 rounded_to<Fp16>(float x) {
  return to_fp16(x);
}
constexpr float to_float(float x) { return x; }

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<Bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<Fp16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};

}  // namespace trainerd::kernels
