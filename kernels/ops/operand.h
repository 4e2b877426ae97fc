#pragma once

// Types that the arguments of several operators share.

#include <cstdint>

#include "kernels/tensor/tensor.h"

namespace trainerd::kernels {

/// Whether an output is overwritten or accumulated into.
enum class WriteMode : std::uint8_t { assign, accumulate };

/// Throws std::logic_error if the arguments of an operator do not match each other. Real backends check more
/// when they run it; the meta backend only checks this.
template <class Args>
void check_args(const Args&) {}

/// How a GEMM operand is scaled. Only `none` exists, because there is no low-precision recipe yet.
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

/// The GEMM that a prepared form is for.
enum class GemmRole : std::uint8_t { fprop, dgrad, wgrad };

/// A linear layer's weight: its plain form, and the backend's own form for one GEMM role (opaque bytes, may
/// be undefined).
struct Weight {
  Tensor plain_NC;
  Tensor prepared;

  bool operator==(const Weight&) const = default;
};

}  // namespace trainerd::kernels
