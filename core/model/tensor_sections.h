#pragma once

#include <cstdint>
#include <vector>

#include "parallel/tensor/shard.h"

namespace trainerd::core::model {

/// Divides a rank's tensor of whole matrices into sections, each of which is distributed over the
/// data-parallel ranks; returns the elements of each. If no matrix needs padding, a section is one matrix, so
/// that every rank holds an equal share of it; else it is the whole tensor. `grain`:
/// parallel::lay_out_buckets rounds a section up to a multiple of it.
std::vector<std::int64_t> tensor_sections(const parallel::ShardSpec& shard, std::int64_t tp,
                                          std::int64_t grain);

}  // namespace trainerd::core::model
