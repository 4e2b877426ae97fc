#pragma once

#include <cstdint>
#include <vector>

#include "parallel/tensor/shard.h"

namespace trainerd::core::model {

/// Elements of a section of a tensor, and what each rank's part of it is a multiple of (parallel::Section).
struct TensorSection {
  std::int64_t elements = 0, part_multiple = 1;
  bool operator==(const TensorSection&) const = default;
};

/// Divides a rank's tensor of whole matrices into sections, each of which is distributed over `parts`
/// data-parallel ranks. Equal matrices whose number is a multiple of `parts`, such as those of a layer's
/// experts, are one section, of which every rank holds whole matrices. Others are a section each, so that
/// every rank holds an equal share of the matrix; the whole tensor is one section if a matrix would need
/// padding. Sections begin at multiples of `parts` x `alignment` elements.
std::vector<TensorSection> tensor_sections(const parallel::ShardSpec& shard, std::int64_t tp,
                                           std::int64_t parts, std::int64_t alignment);

}  // namespace trainerd::core::model
