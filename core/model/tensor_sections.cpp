#include "core/model/tensor_sections.h"

namespace trainerd::core::model {

std::vector<TensorSection> tensor_sections(const parallel::ShardSpec& shard, std::int64_t tp,
                                           std::int64_t parts, std::int64_t alignment) {
  const std::vector<parallel::WholeMatrix> matrices = parallel::whole_matrices(shard, tp);
  const std::int64_t count = matrices.front().local_count, all = parallel::local_shape(shard, tp).numel();
  bool equal = true, even = true;
  std::vector<TensorSection> sections;
  for (const parallel::WholeMatrix& matrix : matrices) {
    equal = equal && matrix.local_count == count;
    even = even && matrix.local_count % (parts * alignment) == 0;
    sections.push_back({matrix.local_count});
  }
  // With tensor parallelism no rank has a whole matrix.
  if (parts > 1 && tp == 1 && equal && std::ssize(matrices) % parts == 0 && count % alignment == 0)
    return {{all, count}};
  if (even) return sections;
  return {{all}};
}

}  // namespace trainerd::core::model
