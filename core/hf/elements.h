#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernels/tensor/dtype.h"

namespace trainerd::core::hf {

/// Storage type of weights in files. Only import handles FP8 (E4M3).
enum class Element : std::uint8_t { f32, bf16, f16, f8 };

/// The type for a dtype word in a safetensors file; nothing if weights cannot have this type.
std::optional<Element> element_of(const std::string& word);
Element element_of(kernels::DType dtype);
std::int64_t size_of(Element element);
/// The smallest dtype that holds all its values: fp32 for fp16. For FP8, whose values have scales, bf16, to
/// which products with scales are rounded.
kernels::DType held_in(Element element);

/// Converts the elements of `from` into `to` (fp32, bf16 or fp16): exact if the dtype holds the value, else
/// rounded to nearest. Returns the index of the first value that is not finite; nothing if all are.
std::optional<std::int64_t> convert(Element element, std::span<const std::byte> from, kernels::DType dtype,
                                    std::span<std::byte> to);

/// Values of MXFP4 (OCP Microscaling Formats, version 1.0): 4 bits each (E2M1), two per byte, the first in
/// the low bits, times 2^(scale - 127) of their block of 32. A scale of 255 makes its block NaN.
constexpr std::int64_t kFp4Block = 32;
void from_mxfp4(std::span<const std::byte> values, std::span<const std::byte> scales, std::span<float> to);

/// Rounds each value to the nearest fp16, ties to even. Returns the index of the first value that is not
/// finite or too large for fp16 (65,504 at most); nothing if there is none.
std::optional<std::int64_t> convert_to_half(std::span<const float> from, std::span<std::byte> to);

/// The index of the first value that is not finite; nothing if all are.
std::optional<std::int64_t> first_not_finite(Element element, std::span<const std::byte> values);

}  // namespace trainerd::core::hf
