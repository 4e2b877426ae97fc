#include "parallel/data/rank_levels.h"

#include <memory>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::parallel {

using kernels::Stream;
using kernels::Tensor;

RankLevels::RankLevels(const std::vector<Communicator*>& groups) {
  for (Communicator* group : groups) {
    if (group->size() == 1) continue;
    groups_.push_back(group);
    rank_ = rank_ * group->size() + group->rank();
    size_ *= group->size();
  }
}

Tensor RankLevels::all_to_all(Stream& stream, Tensor x, Tensor other, const CommOptions& options) const {
  base::check(x.numel() % size_ == 0 && other.numel() == x.numel() && other.dtype == x.dtype,
              "one part for each rank");
  // After a hop, parts are indexed by source in the groups so far and by destination in the remaining ones.
  std::int64_t blocks = 1;
  for (Communicator* group : groups_) {
    const std::int64_t block = x.numel() / blocks;
    std::vector<std::unique_ptr<Work>> work;
    for (std::int64_t b = 0; b < blocks; ++b)
      work.push_back(
          group->all_to_all(stream, x.rows(b * block, block), other.rows(b * block, block), options));
    for (const auto& w : work) w->wait(stream);
    std::swap(x, other);
    blocks *= group->size();
  }
  return x;
}

}  // namespace trainerd::parallel
