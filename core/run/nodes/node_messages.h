#pragma once

// What the agents of a job's nodes say to each other. Node 0's leads. Plain structs; on the wire one JSON
// object each.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/run/preflight/preflight.h"
#include "core/run/stop/stop.h"
#include "core/run/supervise/device_judge.h"
#include "core/run/supervise/rank_sight.h"
#include "core/run/supervise/repeated_failure.h"
#include "core/run/supervise/straggler_watch.h"
#include "core/run/wire/messages.h"
#include "io/checkpoint/checkpoint.h"
#include "io/records/ranks.h"
#include "io/tokens/token_blend.h"
#include "kernels/base/error.h"
#include "kernels/target/target.h"

namespace trainerd::core::run {

/// A node's first words, by which the leader judges whether it belongs to the job.
struct Hello {
  std::int64_t node = 0;
  std::int64_t nodes = 1;
  std::string version;
  std::string host;
  std::string job_yaml;                       ///< resolved
  kernels::Isa isa = kernels::Isa::portable;  ///< the best that its CPU has and the job allows
  std::string agent = {};                     ///< a name that no other process has
  bool spare = false;                         ///< it waits for the place of a lost node
  std::string lost = {};                      ///< of an agent of the run whose leader is lost: why
  /// By step: the attempt that the folder of its checkpoint will be. A frozen host may write to earlier ones.
  std::map<std::int64_t, std::int64_t> folders = {};
  std::vector<std::string> faults_done = {};  ///< see `Start`: as far as this agent knows
};
/// The same agent's first words on the connection of its signs of life.
struct BeatHello {
  std::string agent;
};

// ---- From the leader ----

/// To a spare: it is this node from now on, and `Go` follows.
struct TakePlace {
  std::int64_t node = 0;
};
/// To an agent whose number is taken: it is a spare.
struct WaitAsSpare {};
/// The run goes on with another number of nodes: end this node's part of it, and wait for `TakePlace` and
/// `Go`.
struct Resize {};

/// All have met: begin.
struct Go {
  std::string run = {};        ///< a name that no other run has
  std::string last_good = {};  ///< the checkpoint to load, or "none"
  std::int64_t step = 0;
  std::int64_t cursor = 0;
  std::int64_t tokens = 0;
  io::DataOrder order = {};                   ///< of the samples
  kernels::Isa isa = kernels::Isa::portable;  ///< the best that every node has
  bool evaluate_first = false;                ///< see `Start`
  std::string resume_path = {};               ///< of the checkpoint to load; empty: none is loaded
  // Of an attempt after the first:
  std::int64_t attempt = 1;  ///< its number
  bool from_memory = false;  ///< every node begins from its snapshots of `step`
  std::string reason = {};   ///< what ended the attempt before
  /// The attempt that the folder of a step's checkpoint will be, where it is not the first.
  std::map<std::int64_t, std::int64_t> folders = {};
  std::vector<std::int64_t> fetch = {};  ///< nodes that get those snapshots from their partners
  std::int64_t nodes = 0;                ///< that the run has now; 0: those of the job
  std::string layout =
      {};  ///< of an elastic job, chosen by the planner for these nodes; empty: the job's own
  std::vector<std::string> faults_done = {};  ///< see `Start`
  SpikeHistory spikes = {};                   ///< likewise
  double wall_seconds = 0;                    ///< by the leader's clock, as this was sent
};
/// A worker has died: end the ranks of this attempt, and say what is held.
struct Regroup {
  std::int64_t attempt = 1;
};
/// The run stops between two attempts: the snapshots of the step that stayed in memory go to the disk.
struct SaveHeld {
  std::int64_t step = 0;
};
/// Send the snapshot of the step to the node's partner.
struct CopySnapshot {
  std::int64_t step = 0;
  std::int64_t attempt = 1;
  std::int64_t kept_by_all = -1;  ///< the last step whose copies of all nodes are kept; -1: none
};
/// Every shard of the step's checkpoint is on the disk and it counts.
struct Completed {
  std::int64_t step = 0;
  std::string path;
  std::int64_t folder = 1;  ///< the attempt of its folder
};
/// The step's checkpoint could not be written by some node, and a newer one takes its place. Also to the
/// leader.
struct SaveDropped {
  std::int64_t step = 0;
  std::int64_t attempt = 1;  ///< whose snapshot it is
};
/// A try to write the step's checkpoint failed; it is tried again. Also to the leader.
struct SaveFailed {
  std::int64_t step = 0;
  std::string message;
  double retry_seconds = 0;
  int failures = 0;  ///< in a row
};
/// Copy this node's shards of the checkpoint in that folder to the durable tier.
struct DurableBegin {
  std::int64_t step = 0;
  std::string folder = {};
  std::string target = {};  ///< its name there
};
/// It will not be completed there.
struct DurableDrop {
  std::string folder = {};
};
/// What do your ranks do?
struct ShowRanks {
  std::int64_t attempt = 1;
  std::int64_t number = 0;  ///< of the question
};
/// The run is over for every node.
struct End {
  bool failed = false;
  base::ErrorKind kind = base::ErrorKind::comm;  ///< of a failed one
  std::string message = {};
  int stop_signal = 0;  ///< of one that is not: what stopped it; 0: it is done
};

// ---- To the leader ----

/// Every rank of the node is ready (`Ready`), and all of them see the same data. What their snapshots hold
/// stays on the node.
struct NodeReady {
  std::int64_t attempt = 1;
  std::int64_t threads = 0;  ///< of all its ranks
  std::string data_fingerprint = {};
  std::map<std::string, std::string> evaluated = {};  ///< DataSeen::evaluated
  // What was seen of the node before the first step (core/run/preflight):
  std::vector<RankRate> rates = {};  ///< of its ranks
  std::vector<LinkTime> links = {};  ///< that they have measured
  std::vector<CanaryResult> canaries = {};
  std::string storage = {};  ///< what was wrong with its storage; empty: nothing
  double wall_seconds = 0;   ///< by its clock, as this was sent; 0: not to be compared
  double clock_ahead = 0;    ///< of the leader's by what `Go` said, and its way
};
/// Every rank of the node has made its last step.
struct NodeFinished {
  std::int64_t attempt = 1;
};
/// The node's part of a checkpoint is on the disk. This is where the leader learns what the shards hold.
struct ShardsSaved {
  std::int64_t step = 0;
  std::int64_t first_rank = 0;
  std::vector<io::WrittenShard> shards;  ///< by rank
  double snapshot_seconds = 0;
  double write_seconds = 0;
  std::int64_t attempt = 1;  ///< whose snapshot it is
};
/// The node's shards are in the durable tier.
struct DurableShards {
  std::string folder = {};
  std::int64_t ranks = 0;
  std::int64_t bytes = 0;  ///< that were sent
};
/// A try to copy them failed. It is tried again, unless the output directory does not hold them any more.
struct DurableFailed {
  std::int64_t step = 0;
  std::string folder = {};
  std::string message = {};
  double retry_seconds = 0;
  int failures = 0;
  bool gone = false;
};
/// `weight`: how close it is to the cause.
struct NodeFailed {
  base::ErrorKind kind = base::ErrorKind::comm;
  std::string message;
  int weight = 0;
  bool death = false;       ///< a worker ended by a signal
  FailureCause cause = {};  ///< of that
  bool retry = false;       ///< Failure::retry
};
/// What became of a `CopySnapshot`.
struct SnapshotCopied {
  std::int64_t step = 0;
  std::int64_t attempt = 1;
  bool kept = false;  ///< by the partner
};
/// The node's snapshot of the step could not be brought back from its partner.
struct FetchFailed {
  std::int64_t step = 0;
  std::int64_t attempt = 1;
};
/// A snapshot of another node that this one keeps.
struct HeldCopy {
  std::int64_t node = 0, step = 0, cursor = 0, tokens = 0;
  bool self_contained = false;
};
/// The ranks of the attempt have ended on this node.
struct Held {
  std::int64_t attempt = 1;
  std::vector<std::int64_t> steps = {};  ///< whose snapshots it holds complete
  std::vector<std::int64_t> taken = {};  ///< of these, those that no rank can have begun to overwrite
  bool self_contained = false;           ///< they are all that its ranks need
  std::vector<HeldCopy> copies = {};
};
/// A rank of the node makes no progress.
struct HangSuspected {
  std::int64_t attempt = 1;
};
/// What the node sees of one of its ranks: the answer to `ShowRanks`, one message for each.
struct RankSeen {
  std::int64_t attempt = 1;
  std::int64_t number = 0;  ///< of the question
  RankSight sight = {};
};
/// What steps take on the node's ranks.
struct RankTimes {
  std::int64_t attempt = 1;
  std::vector<RankTime> ranks = {};
};
/// What the node's ranks do at the moment.
struct RanksDoing {
  std::int64_t attempt = 1;
  std::vector<io::RankDoingRecord> ranks = {};
};
/// What the node has found of the GPU of one of its ranks.
struct DeviceFound {
  std::int64_t rank = 0;
  DeviceFinding finding = {};
};
/// The node's agent was asked to stop.
struct StopAsked {
  StopRequest request;
};

/// The same in several messages, each of shards with `boxes` in all, or of one shard that has more: what a
/// node of many ranks saves must not be too long for one.
std::vector<ShardsSaved> in_parts(ShardsSaved whole, std::size_t boxes = 10'000);

using NodeMessage =
    std::variant<Go, Completed, SaveDropped, SaveFailed, End, NodeReady, NodeFinished, ShardsSaved,
                 NodeFailed, StopAsked, Regroup, Held, SaveHeld, CopySnapshot, SnapshotCopied, DurableBegin,
                 DurableDrop, DurableShards, DurableFailed, FetchFailed, TakePlace, WaitAsSpare, Resize,
                 HangSuspected, ShowRanks, RankSeen, RankTimes, RanksDoing, DeviceFound, FaultInjected,
                 CopiesHashed, ResultsDiffer>;

std::string encode(const Hello& hello);
std::string encode(const BeatHello& hello);
std::string encode(const NodeMessage& message);
/// Throws CommError on text that is none. Of another version no more than node, host and version is read.
Hello decode_hello(const std::string& text);
/// None for text that is something else.
std::optional<BeatHello> decode_beat_hello(const std::string& text);
/// Throws CommError on text that is not such a message.
NodeMessage decode_node_message(const std::string& text);

}  // namespace trainerd::core::run
