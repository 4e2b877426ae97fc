#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace trainerd::kernels {

/// What observers report: the operators of operators.def, and copies of memory. Of the latter only the first
/// two take time on a stream.
enum class Operator : std::uint8_t {
#define TRAINERD_OPERATOR(name, Args, cuda) name,
#include "kernels/ops/operators.def"
  copy,
  fill_zero,
  write,
  read_back,
};

/// In the enum's order.
inline constexpr std::array kOperatorNames = {
#define TRAINERD_OPERATOR(name, Args, cuda) #name,
#include "kernels/ops/operators.def"
    "copy",
    "fill_zero",
    "write",
    "read_back",
};

constexpr const char* name_of(Operator op) { return kOperatorNames[static_cast<std::size_t>(op)]; }

}  // namespace trainerd::kernels
