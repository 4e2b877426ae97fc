#include "core/model/tensor_sections.h"

namespace trainerd::core::model {

std::vector<std::int64_t> tensor_sections(const parallel::ShardSpec& shard, std::int64_t tp,
                                          std::int64_t grain) {
  std::vector<std::int64_t> sections;
  bool even = true;
  for (const parallel::WholeMatrix& matrix : parallel::whole_matrices(shard, tp)) {
    even = even && matrix.local_count % grain == 0;
    sections.push_back(matrix.local_count);
  }
  if (even) return sections;
  return {parallel::local_shape(shard, tp).numel()};
}

}  // namespace trainerd::core::model
