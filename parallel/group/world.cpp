#include "parallel/group/world.h"

#include "kernels/base/error.h"
#include "parallel/comm/local_communicator.h"

namespace trainerd::parallel {

std::unique_ptr<Communicator> SingleRankWorld::communicator(kernels::Backend& backend,
                                                            const GroupMembers& group) {
  base::check(group.ranks.count == 1, "a rank alone has no peers");
  return make_single_rank(backend);
}

std::unique_ptr<Communicator> MetaWorld::communicator(kernels::Backend&, const GroupMembers& group) {
  std::function<void(const MetaCollective&)> observe;
  if (on_collective_)
    observe = [observe = on_collective_, group = group.group](const MetaCollective& c) { observe(group, c); };
  return make_meta_communicator(group.ranks.place(rank_).value_or(0), group.ranks.count, std::move(observe));
}

}  // namespace trainerd::parallel
