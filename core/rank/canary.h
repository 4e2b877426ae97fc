#pragma once

#include <string>

#include "kernels/backend/backend.h"

namespace trainerd::core::rank {

/// Products of matrices of small integers, whose values are known exactly whatever the order of the
/// additions: the three GEMMs of a linear layer in `dtype`, computed by all of the device. Empty when they
/// are right; else what is wrong, as "linear_fprop: 2 of 65536 elements are wrong, the first at [3, 17]: 5 in
/// place of 4". It takes some milliseconds and 1 MB of device memory, which it gives back. Throws
/// CapacityError.
std::string wrong_products(kernels::Backend& backend, kernels::DType dtype);

}  // namespace trainerd::core::rank
