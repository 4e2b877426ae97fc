#include "kernels/tensor/tensor.h"

namespace trainerd::kernels {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.ndim; ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t count) const {
  base::check(defined() && begin >= 0 && count >= 0 && begin + count <= size(0), "rows outside the tensor");
  Tensor out = *this;
  out.shape.sizes[0] = count;
  const std::int64_t row = size(0) == 0 ? 0 : numel() / size(0);
  out.data += begin * row * size_of(dtype);
  return out;
}

Tensor Tensor::reshaped(const Shape& to) const {
  base::check(to.numel() == numel(), "a reshape must keep the number of elements");
  Tensor out = *this;
  out.shape = to;
  return out;
}

}  // namespace trainerd::kernels
