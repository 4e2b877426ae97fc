#pragma once

#include <cstdint>

#include "kernels/backend/backend.h"

namespace trainerd::core::train {

constexpr int kNewtonSchulzSteps = 5;

/// FLOPs of the products that orthogonalise a matrix.
double newton_schulz_flops(std::int64_t rows, std::int64_t columns);

/// An approximately orthogonal matrix near x, by five steps of Muon's quintic Newton-Schulz iteration in fp32
/// (K. Jordan, "Muon", 2024): x /= |x| + 1e-7, then x <- a x + (b A + c A^2) x with A = x x^T,
/// (a, b, c) = (3.4445, -4.7750, 2.0315). The singular values come to lie between about 0.7 and 1.2.
/// `x_MN` has no more rows than columns. Returns the one of the two tensors that holds the result; the other
/// is overwritten. Takes 2 M^2 elements of the stream's scratch beside that of the products.
kernels::Tensor newton_schulz(kernels::Backend& backend, kernels::Stream& stream, const kernels::Tensor& x_MN,
                              const kernels::Tensor& other_MN);

}  // namespace trainerd::core::train
