#pragma once

#include <cstdint>
#include <vector>

#include "parallel/tensor/shard.h"

namespace trainerd::core::model {

/// Elements of the runs that a rank's tensor of whole matrices is cut into data-parallel parts by: each
/// matrix by itself where the next one then begins right behind it, so that every part holds as much of it;
/// else the tensor as one. `grain`: what parallel::lay_out_buckets rounds a section up to.
std::vector<std::int64_t> tensor_sections(const parallel::ShardSpec& shard, std::int64_t tp,
                                          std::int64_t grain);

}  // namespace trainerd::core::model
