#include "core/hf/elements.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::core::hf {
namespace {

using kernels::Bf16;
using kernels::DType;

/// Bits of an IEEE 754 binary16.
struct Half {
  std::uint16_t bits = 0;
};

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
float widened(Half x) {
  const int exponent = (x.bits >> 10) & 0x1f, fraction = x.bits & 0x3ff;
  float magnitude = 0;
  if (exponent == 0) magnitude = std::ldexp(static_cast<float>(fraction), -24);
  else if (exponent == 0x1f) magnitude = fraction == 0 ? INFINITY : NAN;
  else magnitude = std::ldexp(static_cast<float>(fraction | 0x400), exponent - 25);
  return (x.bits & 0x8000) != 0 ? -magnitude : magnitude;
}

void narrow(float x, float& out) { out = x; }
void narrow(float x, Bf16& out) { out = kernels::to_bf16(x); }

template <class From, class To>
std::optional<std::int64_t> convert_as(std::span<const std::byte> from, std::span<std::byte> to) {
  const std::size_t count = from.size() / sizeof(From);
  base::check(to.size() == count * sizeof(To), "as many elements are written as are read");
  std::optional<std::int64_t> bad;
  for (std::size_t i = 0; i < count; ++i) {
    From value;  // the bytes may lie at any address
    std::memcpy(&value, from.data() + i * sizeof(From), sizeof(From));
    To out;
    narrow(widened(value), out);
    // Also finds a value too large for the output type.
    if (!bad && !std::isfinite(widened(out))) bad = static_cast<std::int64_t>(i);
    std::memcpy(to.data() + i * sizeof(To), &out, sizeof(To));
  }
  return bad;
}

template <class From>
std::optional<std::int64_t> convert_from(std::span<const std::byte> from, DType dtype,
                                         std::span<std::byte> to) {
  base::check(dtype == DType::f32 || dtype == DType::bf16, "weights are fp32 or bf16");
  return dtype == DType::f32 ? convert_as<From, float>(from, to) : convert_as<From, Bf16>(from, to);
}

// Scales and rounds to the nearest integer, ties to even (the default rounding mode).
Half to_half(float x) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return {static_cast<std::uint16_t>(sign | 0x7e00)};
  if (magnitude >= 65520.0f) return {static_cast<std::uint16_t>(sign | 0x7c00)};  // rounds beyond 65,504
  // `exponent` - 10 is the exponent of the last place. Numbers below 2^-14 are subnormal; theirs is always
  // -24.
  const int exponent = magnitude < 0x1p-14f ? -14 : std::ilogb(magnitude);
  const auto fraction = static_cast<std::uint16_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  // The exponent field of a subnormal is 0. A fraction rounded up to 2^11 carries into the exponent.
  return {static_cast<std::uint16_t>(sign | (((exponent + 14) << 10) + fraction))};
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
  base::check(dtype == DType::f32 || dtype == DType::bf16, "weights are fp32 or bf16");
  return dtype == DType::f32 ? Element::f32 : Element::bf16;
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
    case Element::f16: return convert_from<Half>(from, dtype, to);
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
  base::check(to.size() == from.size() * sizeof(Half), "as many elements are written as are read");
  std::optional<std::int64_t> bad;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const Half half = to_half(from[i]);
    if (!bad && (half.bits & 0x7c00) == 0x7c00) bad = static_cast<std::int64_t>(i);
    std::memcpy(to.data() + i * sizeof(Half), &half, sizeof(Half));
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
