#include "core/hf/elements.h"

#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::core::hf {
namespace {

using kernels::Bf16;
using kernels::DType;
using kernels::Fp16;

/// Bits of an E4M3 number (arXiv 2209.05433): no infinities, and one NaN.
struct E4m3 {
  std::uint8_t bits = 0;
};

/// The values of all E4M3 numbers.
std::array<float, 256> e4m3_values() {
  std::array<float, 256> values{};
  for (std::size_t bits = 0; bits < values.size(); ++bits) {
    const auto exponent = static_cast<int>(bits >> 3 & 0xf), fraction = static_cast<int>(bits & 7);
    float magnitude = 0;
    if (exponent == 0) magnitude = std::ldexp(static_cast<float>(fraction), -9);
    else if ((bits & 0x7f) == 0x7f) magnitude = NAN;
    else magnitude = std::ldexp(static_cast<float>(fraction | 8), exponent - 10);
    values[bits] = (bits & 0x80) != 0 ? -magnitude : magnitude;
  }
  return values;
}

float widened(float x) { return x; }
float widened(E4m3 x) {
  static const std::array<float, 256> values = e4m3_values();
  return values[x.bits];
}
float widened(Bf16 x) { return kernels::to_float(x); }
float widened(Fp16 x) { return kernels::to_float(x); }

template <class From, class To>
std::optional<std::int64_t> convert_as(std::span<const std::byte> from, std::span<std::byte> to) {
  const std::size_t count = from.size() / sizeof(From);
  base::check(to.size() == count * sizeof(To), "as many elements are written as are read");
  std::optional<std::int64_t> bad;
  for (std::size_t i = 0; i < count; ++i) {
    From value;  // the bytes may lie at any address
    std::memcpy(&value, from.data() + i * sizeof(From), sizeof(From));
    const To out = kernels::rounded_to<To>(widened(value));
    // Also finds a value too large for the output type.
    if (!bad && !std::isfinite(widened(out))) bad = static_cast<std::int64_t>(i);
    std::memcpy(to.data() + i * sizeof(To), &out, sizeof(To));
  }
  return bad;
}

template <class From>
std::optional<std::int64_t> convert_from(std::span<const std::byte> from, DType dtype,
                                         std::span<std::byte> to) {
  switch (dtype) {
    case DType::f32: return convert_as<From, float>(from, to);
    case DType::bf16: return convert_as<From, Bf16>(from, to);
    case DType::f16: return convert_as<From, Fp16>(from, to);
    default: break;
  }
  base::check(false, "weights are fp32, bf16 or fp16");
  return std::nullopt;
}

/// The index of the first value whose exponent bits are all ones.
template <class Bits>
std::optional<std::int64_t> first_with(Bits exponent, std::span<const std::byte> values) {
  for (std::size_t i = 0; i + sizeof(Bits) <= values.size(); i += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, values.data() + i, sizeof(Bits));
    if ((bits & exponent) == exponent) return static_cast<std::int64_t>(i / sizeof(Bits));
  }
  return std::nullopt;
}

}  // namespace

std::optional<Element> element_of(const std::string& word) {
  if (word == "F32") return Element::f32;
  if (word == "BF16") return Element::bf16;
  if (word == "F16") return Element::f16;
  if (word == "F8_E4M3") return Element::f8;
  return std::nullopt;
}

Element element_of(DType dtype) {
  base::check(kernels::is_float(dtype), "weights are fp32, bf16 or fp16");
  return dtype == DType::f32 ? Element::f32 : dtype == DType::bf16 ? Element::bf16 : Element::f16;
}

std::int64_t size_of(Element element) {
  if (element == Element::f8) return 1;
  return element == Element::f32 ? 4 : 2;
}

DType held_in(Element element) {
  return element == Element::bf16 || element == Element::f8 ? DType::bf16 : DType::f32;
}

std::optional<std::int64_t> convert(Element element, std::span<const std::byte> from, DType dtype,
                                    std::span<std::byte> to) {
  switch (element) {
    case Element::f32: return convert_from<float>(from, dtype, to);
    case Element::bf16: return convert_from<Bf16>(from, dtype, to);
    case Element::f16: return convert_from<Fp16>(from, dtype, to);
    case Element::f8: return convert_from<E4m3>(from, dtype, to);
  }
  return std::nullopt;
}

void from_mxfp4(std::span<const std::byte> values, std::span<const std::byte> scales, std::span<float> to) {
  constexpr std::array<float, 8> kMagnitudes{0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  base::check(to.size() == 2 * values.size() && to.size() == kFp4Block * scales.size(),
              "two values per byte, and 32 per scale");
  for (std::size_t i = 0; i < to.size(); ++i) {
    const auto bits = std::to_integer<unsigned>(values[i / 2]) >> (i % 2 == 0 ? 0 : 4) & 0xfu;
    const auto scale = std::to_integer<int>(scales[i / kFp4Block]);
    const float magnitude = scale == 255 ? NAN : std::ldexp(kMagnitudes[bits & 7u], scale - 127);
    to[i] = (bits & 8u) != 0 ? -magnitude : magnitude;
  }
}

std::optional<std::int64_t> convert_to_half(std::span<const float> from, std::span<std::byte> to) {
  base::check(to.size() == from.size() * sizeof(Fp16), "as many elements are written as are read");
  std::optional<std::int64_t> bad;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const Fp16 half = kernels::to_fp16(from[i]);
    if (!bad && (half.bits & 0x7c00) == 0x7c00) bad = static_cast<std::int64_t>(i);
    std::memcpy(to.data() + i * sizeof(Fp16), &half, sizeof(Fp16));
  }
  return bad;
}

std::optional<std::int64_t> first_not_finite(Element element, std::span<const std::byte> values) {
  switch (element) {
    case Element::f32: return first_with<std::uint32_t>(0x7f800000, values);
    case Element::bf16: return first_with<std::uint16_t>(0x7f80, values);
    case Element::f8: return first_with<std::uint8_t>(0x7f, values);
    case Element::f16: break;
  }
  return first_with<std::uint16_t>(0x7c00, values);
}

}  // namespace trainerd::core::hf
