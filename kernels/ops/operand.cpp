#include "kernels/ops/operand.h"

#include "kernels/base/error.h"

namespace trainerd::kernels {

void check_not_mixed(DType a, DType b) {
  base::check(is_float(a) && is_float(b), "tensors in fp32, bf16 or fp16");
  base::check(size_of(a) != size_of(b) || a == b, "bf16 is not mixed with fp16");
}

void check_weights(DType activations, DType weights) {
  base::check(is_float(activations), "tensors in fp32, bf16 or fp16");
  base::check(weights == activations, "weights need the dtype of the activations");
}

}  // namespace trainerd::kernels
