#pragma once

#include <cstdint>

#include "kernels/backend/backend.h"

namespace trainerd::core::train {

constexpr int kNewtonSchulzSteps = 5;

/// FLOPs of the GEMMs that orthogonalise a matrix.
double newton_schulz_flops(std::int64_t rows, std::int64_t columns);

/// An approximately orthogonal matrix near x, from five steps of Muon's quintic Newton-Schulz iteration in
/// fp32 (K. Jordan, "Muon", 2024): x /= |x| + 1e-7, then x <- a x + (b A + c A^2) x with A = x x^T, (a, b, c)
/// = (3.4445, -4.7750, 2.0315). The resulting singular values are between about 0.7 and 1.2. `x_MN` has at
/// most as many rows as columns. Returns the tensor with the result, `x_MN` or `other_MN`; the other one is
/// overwritten. Needs 2 M^2 elements of the stream's scratch besides that of the GEMMs.
kernels::Tensor newton_schulz(kernels::Backend& backend, kernels::Stream& stream, const kernels::Tensor& x_MN,
                              const kernels::Tensor& other_MN);

}  // namespace trainerd::core::train
