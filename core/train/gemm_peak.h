#pragma once

#include "kernels/backend.h"

namespace trainerd::core {

/// FLOP/s of a square GEMM of 1024 in `dtype` on this backend: the best of several, with a plain weight and with
/// a prepared one where there is such a form, a tenth of a second each. It is the CPU's peak in MFU: other work on the machine slows a repeat, nothing makes one faster
/// than the hardware. 0 when the time could not be measured.
double measure_gemm_peak(kernels::Backend& backend, kernels::DType dtype);

}  // namespace trainerd::core
