#pragma once

// The groups of ranks that communicate: the one table of them. A new axis of parallelism adds its groups
// here, and to `groups_of`.

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/base/ledger.h"

namespace trainerd::parallel {

enum class Group : std::uint8_t {
  tp,        ///< tensor-parallel ranks
  kv,        ///< those of them that hold the same key and value heads
  dp,        ///< data-parallel ranks, where they communicate as one group
  dp_inner,  ///< neighbouring data-parallel ranks, where they communicate in two levels
  dp_outer,  ///< one of each inner group
  pp,        ///< pipeline ranks
  tied,      ///< both ends of the pipeline, which hold a tied embedding
  world,     ///< all ranks
};

struct GroupInfo {
  Group group;
  const char* name;        ///< in traces, plans and messages; a communicator's own
  base::LedgerPart issue;  ///< charged while the compute stream hands an operation over
  base::LedgerPart wait;   ///< charged while it awaits one
  bool joins_stages;       ///< ranks of several pipeline stages take part in its collectives
};
inline constexpr std::array kGroups{
    GroupInfo{Group::tp, "tp", base::LedgerPart::exposed_tp, base::LedgerPart::exposed_tp, false},
    GroupInfo{Group::kv, "kv", base::LedgerPart::exposed_tp, base::LedgerPart::exposed_tp, false},
    GroupInfo{Group::dp, "dp", base::LedgerPart::exposed_dp, base::LedgerPart::exposed_dp, false},
    GroupInfo{Group::dp_inner, "dp_inner", base::LedgerPart::exposed_dp, base::LedgerPart::exposed_dp, false},
    GroupInfo{Group::dp_outer, "dp_outer", base::LedgerPart::exposed_dp, base::LedgerPart::exposed_dp, false},
    // It has messages alone, no collectives.
    GroupInfo{Group::pp, "pp", base::LedgerPart::exposed_pp, base::LedgerPart::bubble, false},
    GroupInfo{Group::tied, "tied", base::LedgerPart::exposed_pp, base::LedgerPart::exposed_pp, true},
    GroupInfo{Group::world, "world", base::LedgerPart::exposed_world, base::LedgerPart::exposed_world, true},
};
static_assert(
    [] {
      for (std::size_t i = 0; i < kGroups.size(); ++i)
        if (static_cast<std::size_t>(kGroups[i].group) != i) return false;
      return kGroups.back().group == Group::world;
    }(),
    "the table has every group, in the enum's order");

constexpr const GroupInfo& info(Group group) { return kGroups[static_cast<std::size_t>(group)]; }

}  // namespace trainerd::parallel
