#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernels/tensor/dtype.h"

namespace trainerd::core::hf {

/// What weights are stored in. fp16 is read by import and written by export: no other part of the program has
/// it.
enum class Element : std::uint8_t { f32, bf16, f16 };

/// Of a dtype's word in a safetensors file; none where weights are not stored so.
std::optional<Element> element_of(const std::string& word);
Element element_of(kernels::DType dtype);
std::int64_t size_of(Element element);
/// The dtype that holds all its values, as small as it can be: fp32 for fp16.
kernels::DType held_in(Element element);

/// Copies `from` to `to`, f32 or bf16, of as many elements; exact where the dtype holds the value, else to
/// the nearest. Returns the place of the first value that is not finite; none: all are.
std::optional<std::int64_t> convert(Element element, std::span<const std::byte> from, kernels::DType dtype,
                                    std::span<std::byte> to);

/// The nearest fp16 of each, of equal distance the even one. Returns the place of the first value that is not
/// finite, or too large for fp16 (65,504 at most); none: there is none.
std::optional<std::int64_t> convert_to_half(std::span<const float> from, std::span<std::byte> to);

/// The place of the first value that is not finite; none: all are.
std::optional<std::int64_t> first_not_finite(Element element, std::span<const std::byte> values);

}  // namespace trainerd::core::hf
