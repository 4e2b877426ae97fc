#include "core/hf/stacked_experts.h"

#include <algorithm>

namespace trainerd::core::hf {

void place_expert(const MappedTensor& tensor, const ExpertPart& part, const io::TensorSlice& box,
                  std::span<std::byte> out) {
  const bool vector = box.shape.size() == 1;
  const std::int64_t rows = tensor.expert_rows(), first = part.expert * rows,
                     begin = std::max(first, box.begin[0]),
                     end = std::min(first + rows, box.begin[0] + box.shape[0]),
                     columns = vector ? 1 : box.shape[1], skipped = (vector ? 0 : box.begin[1]) - part.column,
                     size = kernels::size_of(part.dtype);
  const std::int64_t across = part.by_rows ? 1 : rows, down = part.by_rows ? part.columns : 1;
  for (std::int64_t r = begin; r < end; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      std::copy_n(part.values.begin() + (tensor.their_row(r - first) * down + (skipped + c) * across) * size,
                  size, out.begin() + ((r - box.begin[0]) * columns + c) * size);
}

}  // namespace trainerd::core::hf
