#pragma once

#include "core/run/nodes/node_messages.h"
#include "core/run/nodes/partner.h"

namespace trainerd::core::run {

/// What an agent has in memory of the ranks of a node, its own or one that it keeps copies for. It outlives
/// the attempt, the size and the leader under which it was taken.
struct HeldState {
  StateCut cut;
  bool taken = true;  ///< no rank can have begun to overwrite it
  bool own = true;    ///< of this agent's ranks; else a copy that it keeps as a partner
  std::string head;   ///< see StateOffer
  NodeCopy copy;
};

}  // namespace trainerd::core::run
