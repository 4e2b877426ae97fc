#pragma once

// The table of the groups of ranks that communicate. A new axis of parallelism adds its groups here and in
// `groups_of`.

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/base/ledger.h"

namespace trainerd::parallel {

enum class Group : std::uint8_t {
  tp,         ///< tensor-parallel ranks
  kv,         ///< tensor-parallel ranks that hold the same key and value heads
  cp,         ///< context-parallel ranks, which share sequences
  ep,         ///< expert-parallel ranks, which share the experts of a layer
  edp,        ///< ranks that hold the same experts and sum their gradients
  dp,         ///< ranks that sum gradients (data and context parallel), if they communicate in one level
  dp_inner,   ///< neighbouring ones, if they communicate in two levels
  dp_outer,   ///< one of each inner group
  pp,         ///< pipeline ranks
  tied,       ///< first and last rank of the pipeline, which both hold a tied embedding
  from_host,  ///< this rank alone: copies of offloaded tensors from its host's memory
  to_host,    ///< the same to its host's memory
  world,      ///< all ranks
};

struct GroupInfo {
  Group group;
  const char* name;        ///< in traces, plans and messages; also the communicator's name
  base::LedgerPart issue;  ///< charged while the compute stream issues an operation
  base::LedgerPart wait;   ///< charged while the compute stream waits for one
  bool joins_stages;       ///< ranks of several pipeline stages take part in its collectives
};
inline constexpr std::array kGroups{
    GroupInfo{Group::tp, "tp", base::LedgerPart::exposed_tp, base::LedgerPart::exposed_tp, false},
    GroupInfo{Group::kv, "kv", base::LedgerPart::exposed_tp, base::LedgerPart::exposed_tp, false},
    GroupInfo{Group::cp, "cp", base::LedgerPart::exposed_cp, base::LedgerPart::exposed_cp, false},
    GroupInfo{Group::ep, "ep", base::LedgerPart::exposed_ep, base::LedgerPart::exposed_ep, false},
    GroupInfo{Group::edp, "edp", base::LedgerPart::exposed_dp, base::LedgerPart::exposed_dp, false},
    GroupInfo{Group::dp, "dp", base::LedgerPart::exposed_dp, base::LedgerPart::exposed_dp, false},
    GroupInfo{Group::dp_inner, "dp_inner", base::LedgerPart::exposed_dp, base::LedgerPart::exposed_dp, false},
    GroupInfo{Group::dp_outer, "dp_outer", base::LedgerPart::exposed_dp, base::LedgerPart::exposed_dp, false},
    // Has messages only, no collectives.
    GroupInfo{Group::pp, "pp", base::LedgerPart::exposed_pp, base::LedgerPart::bubble, false},
    GroupInfo{Group::tied, "tied", base::LedgerPart::exposed_pp, base::LedgerPart::exposed_pp, true},
    GroupInfo{Group::from_host, "from_host", base::LedgerPart::exposed_host, base::LedgerPart::exposed_host,
              false},
    GroupInfo{Group::to_host, "to_host", base::LedgerPart::exposed_host, base::LedgerPart::exposed_host,
              false},
    GroupInfo{Group::world, "world", base::LedgerPart::exposed_world, base::LedgerPart::exposed_world, true},
};
static_assert(
    [] {
      for (std::size_t i = 0; i < kGroups.size(); ++i)
        if (static_cast<std::size_t>(kGroups[i].group) != i) return false;
      return kGroups.back().group == Group::world;
    }(),
    "the table has every group, in the enum's order");

/// True for a rank's own copies between its device and its host. Other groups of one rank move nothing.
constexpr bool is_host_link(Group group) { return group == Group::from_host || group == Group::to_host; }

constexpr const GroupInfo& info(Group group) { return kGroups[static_cast<std::size_t>(group)]; }

}  // namespace trainerd::parallel
