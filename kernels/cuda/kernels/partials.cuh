#pragma once

#include "kernels/cuda/kernels/launch.cuh"
#include "kernels/cuda/launch/partials.h"

namespace trainerd::kernels::cuda {

/// out[i] (+)= partial[0][i] + partial[1][i] + ..., in an order that only depends on `parts`. Rows are
/// `partial_stride(n)` floats apart, where n is the number of elements of `out`.
void sum_partials(const Launch&, const float* partial, std::int64_t parts, const Tensor& out, WriteMode mode);

}  // namespace trainerd::kernels::cuda
