// The copies that a partner keeps (partner.h).

#include "core/run/nodes/partner.h"

namespace trainerd::core::run {

std::int64_t NodeCopy::bytes() const {
  std::int64_t bytes = 0;
  for (const Rank& rank : ranks) bytes += rank.bytes;
  return bytes;
}

bool NodeCopy::self_contained() const {
  std::vector<io::TensorSlice> all;
  for (const Rank& rank : ranks) all.insert(all.end(), rank.slices.begin(), rank.slices.end());
  for (const Rank& rank : ranks)
    for (const io::TensorSlice& box : rank.borrowed)
      if (!io::covers(all, box)) return false;
  return true;
}

std::int64_t partner_of(std::int64_t node, std::int64_t nodes, std::int64_t domain) {
  return (node + (domain > 1 && domain < nodes ? domain : 1)) % nodes;
}

}  // namespace trainerd::core::run
