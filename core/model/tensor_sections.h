#pragma once

#include <cstdint>
#include <vector>

#include "parallel/tensor/shard.h"

namespace trainerd::core::model {

/// How a rank's tensor of whole matrices is divided into sections, each of which is shared out over the
/// data-parallel ranks: the elements of each. Where no matrix needs padding behind it, a section is one
/// matrix, so that every rank holds as much of it; else it is the whole tensor. `grain`:
/// parallel::lay_out_buckets rounds a section up to a multiple of it.
std::vector<std::int64_t> tensor_sections(const parallel::ShardSpec& shard, std::int64_t tp,
                                          std::int64_t grain);

}  // namespace trainerd::core::model
