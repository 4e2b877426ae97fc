#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/run/agent/copy_watch.h"
#include "core/run/agent/sound_checkpoints.h"
#include "core/run/nodes/membership.h"
#include "core/run/nodes/node_messages.h"
#include "core/run/nodes/state_choice.h"
#include "core/run/nodes/state_exchange.h"
#include "kernels/base/segment.h"

// What a run (run.h) keeps of snapshots beside the segments themselves.

namespace trainerd::core::run {

/// A snapshot on its way to the disk.
struct Saving {
  std::vector<std::int64_t> segments;  ///< by rank of the node
  std::int64_t attempt = 1;            ///< whose snapshot it is
  std::int64_t folder = 1;             ///< the attempt of its folder
  bool in_use = true;                  ///< by this node's writer
  bool dropped = false;                ///< by the job
  bool copied = false;                 ///< its memory is read for the durable tier
  bool released = false;               ///< once it is not any more
  /// Set to end its write.
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
};

/// On the leader, with supervise.hash_every: which states of the present attempt are the same on all ranks.
struct ComparedStates {
  std::optional<CopyWatch> watch;  ///< of one attempt
  std::int64_t attempt = 0;        ///< its number
  std::optional<SoundCheckpoints> checkpoints;
  std::optional<std::int64_t> equal_until;  ///< after a corruption: last sound step
};

/// Segments that are not to be filled, though no writer needs them.
struct Kept {
  std::vector<std::int64_t> segments;  ///< by rank of the node
  bool until_newer = false;            ///< as long as it is the newest; else while it is sent
};

/// A step whose snapshots every node has in its own memory or its partner's.
struct InMemory {
  std::int64_t step = 0, cursor = 0, tokens = 0;
  std::vector<std::int64_t> fetch;  ///< nodes that get theirs from their partners
};

/// The shards that a node's ranks begin from, gathered from the agents that had them.
struct Gathered {
  std::vector<HeldShard> shards;
  std::vector<std::shared_ptr<const base::Segment>> memory;  ///< of each shard
};

/// Handles what comes, for so many seconds at the most.
using Turn = std::function<void(double)>;

/// Snapshots that survive elsewhere: what the leader learns of them, and the exchange of their bytes.
struct SurvivingStates {
  std::unique_ptr<StateExchange> exchange;  ///< of a run over several nodes
  std::optional<Gathered> gathered;         ///< until all ranks have loaded it
  std::int64_t question = 0;                ///< the leader's latest
  std::set<std::int64_t> asked;             ///< nodes that have not answered it in full
  std::set<std::int64_t> answered;          ///< nodes that have
  std::vector<ShownOffer> shown;            ///< the answers so far
  Go begun_with;                            ///< the leader's, of its first attempt
  std::int64_t disk_step = 0;               ///< of the newest checkpoint as this run began; 0: there was none
  std::vector<Membership::Event> deferred;  ///< that came before it began
  std::string excluded;  ///< why the others may go on without this agent; empty: they do not
};

/// "the snapshots of step 40 in the memory of node 0 and node 2": where ranks begin, of a `Go` with sources.
std::string to_text(const Go& go);

}  // namespace trainerd::core::run
