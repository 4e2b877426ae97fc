#pragma once

#include "kernels/cuda/kernels/launch.cuh"
#include "kernels/cuda/launch/partials.h"

namespace trainerd::kernels::cuda {

/// out[i] (+)= partial[0][i] + partial[1][i] + ..., in an order that `parts` alone fixes; rows lie
/// `partial_stride(n)` floats apart, n elements of `out`.
void sum_partials(const Launch&, const float* partial, std::int64_t parts, const Tensor& out, WriteMode mode);

}  // namespace trainerd::kernels::cuda
