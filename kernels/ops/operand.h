#pragma once

// What the arguments of several operators share.

#include <cstdint>

#include "kernels/tensor/tensor.h"

namespace trainerd::kernels {

/// Whether an output is overwritten or added to.
enum class WriteMode : std::uint8_t { assign, accumulate };

/// Throws std::logic_error where the arguments of an operator do not fit each other. Worlds check more where
/// they run it; the meta world does this much.
template <class Args>
void check_args(const Args&) {}

/// How a GEMM operand is scaled. Only `none` exists until a low-precision recipe does.
enum class ScaleMode : std::uint8_t { none };

/// One GEMM input.
struct Operand {
  Tensor data;
  ScaleMode scale_mode = ScaleMode::none;
  Tensor scale;

  Operand() = default;
  Operand(const Tensor& tensor)
      : data(tensor) {}  // NOLINT(google-explicit-constructor): a plain tensor is an operand

  bool operator==(const Operand&) const = default;
};

/// The GEMM that a prepared form serves.
enum class GemmRole : std::uint8_t { fprop, dgrad, wgrad };

/// A linear layer's weight: its plain form, and for one GEMM role the backend's own form (opaque bytes, may
/// be absent).
struct Weight {
  Tensor plain_NC;
  Tensor prepared;

  bool operator==(const Weight&) const = default;
};

}  // namespace trainerd::kernels
