#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace trainerd::kernels {

enum class DType : std::uint8_t { f32, bf16, i32, f64, u8 };

/// Bytes of one element.
constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16: return 2;
    case DType::f64: return 8;
    case DType::u8: return 1;
  }
  return 0;
}

/// "fp32", "bf16", "int32", "fp64", "uint8": the names in job specs, plans and manifests.
constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::i32: return "int32";
    case DType::f64: return "fp64";
    case DType::u8: return "uint8";
  }
  return "?";
}

/// Inverse of `name_of`; none for an unknown name.
constexpr std::optional<DType> parse_dtype(std::string_view name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::f64, DType::u8})
    if (name == name_of(dtype)) return dtype;
  return std::nullopt;
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
