#pragma once

// Messages between the agents of a job's nodes. Node 0's agent leads. They are plain structs, sent as one
// JSON object each.

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

/// An agent's first message, from which the leader decides whether the agent belongs to the job.
struct Hello {
  std::int64_t node = 0;
  std::int64_t nodes = 1;
  std::string version;
  std::string host;
  std::string job_yaml;                       ///< the resolved job (shared_job)
  kernels::Isa isa = kernels::Isa::portable;  ///< the best that its CPU has and the job allows
  std::string agent = {};                     ///< random id of the process
  bool spare = false;                         ///< the agent waits for a lost node's place
  std::string lost = {};                      ///< why the leader was lost, at an agent of a running job
  /// By step: attempt number of its next checkpoint folder. A frozen host may write to earlier ones.
  std::map<std::int64_t, std::int64_t> folders = {};
  std::vector<std::string> faults_done = {};  ///< see `Start`; as far as this agent knows
};
/// The same agent's first message on its heartbeat connection.
struct BeatHello {
  std::string agent;
};

// ---- From the leader ----

/// To a spare: from now on it is this node, and `Go` follows.
struct TakePlace {
  std::int64_t node = 0;
};
/// To an agent whose number is taken: it becomes a spare.
struct WaitAsSpare {};
/// The run goes on with another number of nodes: end this node's part of it, and wait for `TakePlace` and
/// `Go`.
struct Resize {
  bool from_disk = false;  ///< what agents hold in memory does not count any more
};

/// A step whose snapshots belong together: those of all nodes with an equal cut are one state of the job.
struct StateCut {
  std::string run = {};      ///< Go::run of the lead under which they were taken; empty: no cut
  std::int64_t attempt = 1;  ///< likewise
  std::int64_t step = 0, cursor = 0, tokens = 0;

  bool operator==(const StateCut&) const = default;
};
/// An agent that has the snapshots of a node's ranks. Both numbers may be of a node set before this one.
struct StateSource {
  std::int64_t of = 0;    ///< the node whose ranks they are, as it was numbered when they were taken
  std::int64_t from = 0;  ///< the node whose agent has them, as it is numbered now
  bool copy = false;      ///< kept by a partner

  bool operator==(const StateSource&) const = default;
};
/// Which snapshots does your agent have in memory? Answered by `StateShown` messages, the last of them
/// marked.
struct ShowState {
  std::int64_t number = 0;  ///< of the question
};

/// All agents have joined: begin.
struct Go {
  std::string run = {};        ///< unique name of the run
  std::string last_good = {};  ///< the checkpoint to load, or "none"
  std::int64_t step = 0;
  std::int64_t cursor = 0;
  std::int64_t tokens = 0;
  io::DataOrder order = {};                   ///< order of the samples
  kernels::Isa isa = kernels::Isa::portable;  ///< the best that every node has
  bool evaluate_first = false;                ///< see `Start`
  std::string resume_path = {};               ///< path of the checkpoint to load; empty: none is loaded
  // For attempts after the first:
  std::int64_t attempt = 1;  ///< number of the attempt
  bool from_memory = false;  ///< every node begins from its snapshots of `step`
  std::string reason = {};   ///< why the previous attempt ended
  /// By step, if above 1: attempt number of its next checkpoint folder.
  std::map<std::int64_t, std::int64_t> folders = {};
  std::vector<std::int64_t> fetch = {};       ///< nodes that fetch those snapshots from their partners
  std::int64_t nodes = 0;                     ///< number of nodes that the run has now; 0: the job's
  std::string layout = {};                    ///< the planner's choice for these nodes; empty: the job's own
  std::vector<std::string> faults_done = {};  ///< see `Start`
  SpikeHistory spikes = {};                   ///< likewise
  double wall_seconds = 0;                    ///< by the leader's clock, as this was sent
  /// With `from_memory`: each node gathers what its ranks need from these agents, whatever layout it was
  /// saved by. Empty: `fetch` applies.
  StateCut cut = {};
  std::vector<StateSource> sources = {};
  std::string head = {};  ///< what a later leader must know of the run: see StateOffer
};
/// A worker has died. End the ranks of this attempt and report the held snapshots.
struct Regroup {
  std::int64_t attempt = 1;
};
/// The run stops between two attempts: write the step's snapshot, which is in memory only, to the disk.
struct SaveHeld {
  std::int64_t step = 0;
};
/// Send the snapshot of the step to the node's partner.
struct CopySnapshot {
  std::int64_t step = 0;
  std::int64_t attempt = 1;
  std::int64_t kept_by_all = -1;  ///< the last step that all partners keep; -1: none
};
/// The step's checkpoint is complete: every shard is on the disk.
struct Completed {
  std::int64_t step = 0;
  std::string path;
  std::int64_t folder = 1;  ///< attempt number of its folder
};
/// A node could not write its part of the step's checkpoint, and a newer one replaces it. Also sent to the
/// leader.
struct SaveDropped {
  std::int64_t step = 0;
  std::int64_t attempt = 1;  ///< the attempt that made the snapshot
};
/// A try to write the step's checkpoint failed and will be repeated. Also sent to the leader.
struct SaveFailed {
  std::int64_t step = 0;
  std::string message;
  double retry_seconds = 0;
  int failures = 0;  ///< number of failures in a row
};
/// Copy this node's shards of the checkpoint in that folder to the durable tier.
struct DurableBegin {
  std::int64_t step = 0;
  std::string folder = {};
  std::string target = {};  ///< folder name in the tier
};
/// The copy will not be completed; stop it.
struct DurableDrop {
  std::string folder = {};
};
/// Report what your ranks are doing (`RankSeen`).
struct ShowRanks {
  std::int64_t attempt = 1;
  std::int64_t number = 0;  ///< number of the inquiry
};
/// The run is over for every node.
struct End {
  bool failed = false;
  base::ErrorKind kind = base::ErrorKind::comm;  ///< if `failed`
  std::string message = {};
  int stop_signal = 0;    ///< of one that is not: what stopped it; 0: it is done
  bool excludes = false;  ///< of one that failed: only for the agent that gets it, which counts as lost
};

// ---- To the leader ----

/// Every rank of the node is ready (`Ready`), and all of them see the same data. The descriptions of their
/// snapshots stay on the node.
struct NodeReady {
  std::int64_t attempt = 1;
  std::int64_t threads = 0;  ///< sum over its ranks
  std::string data_fingerprint = {};
  std::map<std::string, std::string> evaluated = {};  ///< DataSeen::evaluated
  // Pre-flight findings (core/run/preflight):
  std::vector<RankRate> rates = {};  ///< of its ranks
  std::vector<LinkTime> links = {};  ///< that they have measured
  std::vector<CanaryResult> canaries = {};
  std::string storage = {};  ///< what was wrong with its storage; empty: nothing
  double wall_seconds = 0;   ///< by its clock, as this was sent; 0: not to be compared
  double clock_ahead = 0;    ///< of the leader's by what `Go` said, and its way
};
/// Every rank of the node has done its last step.
struct NodeFinished {
  std::int64_t attempt = 1;
};
/// The node's part of a checkpoint is on the disk. The message also describes the shards' content.
struct ShardsSaved {
  std::int64_t step = 0;
  std::int64_t first_rank = 0;
  std::vector<io::WrittenShard> shards;  ///< indexed by rank
  double snapshot_seconds = 0;
  double write_seconds = 0;
  std::int64_t attempt = 1;  ///< the attempt that made the snapshot
};
/// The node's shards are in the durable tier.
struct DurableShards {
  std::string folder = {};
  std::int64_t ranks = 0;
  std::int64_t bytes = 0;  ///< bytes sent
};
/// A try to copy the shards failed. It is repeated, unless the output directory no longer holds them
/// (`gone`).
struct DurableFailed {
  std::int64_t step = 0;
  std::string folder = {};
  std::string message = {};
  double retry_seconds = 0;
  int failures = 0;
  bool gone = false;
};
/// A failure on the node. `weight`: larger is closer to the cause.
struct NodeFailed {
  base::ErrorKind kind = base::ErrorKind::comm;
  std::string message;
  int weight = 0;
  bool death = false;       ///< a worker ended by a signal
  FailureCause cause = {};  ///< of the death
  bool retry = false;       ///< Failure::retry
};
/// The result of a `CopySnapshot`.
struct SnapshotCopied {
  std::int64_t step = 0;
  std::int64_t attempt = 1;
  bool kept = false;  ///< the partner keeps it
};
/// The node could not fetch its snapshot of the step from its partner.
struct FetchFailed {
  std::int64_t step = 0;
  std::int64_t attempt = 1;
};
/// Another node's snapshot that this node keeps as its partner.
struct HeldCopy {
  std::int64_t node = 0, step = 0, cursor = 0, tokens = 0;
  bool self_contained = false;
};
/// The ranks of the attempt have ended on this node.
struct Held {
  std::int64_t attempt = 1;
  std::vector<std::int64_t> steps = {};  ///< steps whose snapshots it holds completely
  std::vector<std::int64_t> taken = {};  ///< those of them that no rank can have begun to overwrite
  bool self_contained = false;           ///< the snapshots hold all that its ranks need
  std::vector<HeldCopy> copies = {};
};
/// Some of the ranks of one held state: a part of an answer to `ShowState`.
struct StateOffer {
  StateCut cut = {};
  std::int64_t node = 0;          ///< whose ranks they are, as it was numbered when they were taken
  bool taken = true, own = true;  ///< see HeldState
  std::string head = {};  ///< the training state, as a manifest without shards; in its first part alone
  std::vector<io::TensorSlice> slices = {};
};
struct StateShown {
  std::int64_t number = 0;
  bool last = false;
  std::vector<StateOffer> offers = {};
};
/// A rank of the node makes no progress.
struct HangSuspected {
  std::int64_t attempt = 1;
};
/// The state of one of the node's ranks: the answer to `ShowRanks`, one message per rank.
struct RankSeen {
  std::int64_t attempt = 1;
  std::int64_t number = 0;  ///< number of the inquiry
  RankSight sight = {};
};
/// Step times of the node's ranks.
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

/// Splits the message into several with at most `boxes` slices each; a shard with more gets its own. A node
/// with many ranks would else exceed the length limit of a message.
std::vector<ShardsSaved> in_parts(ShardsSaved whole, std::size_t boxes = 10'000);

using NodeMessage =
    std::variant<Go, Completed, SaveDropped, SaveFailed, End, NodeReady, NodeFinished, ShardsSaved,
                 NodeFailed, StopAsked, Regroup, Held, SaveHeld, CopySnapshot, SnapshotCopied, DurableBegin,
                 DurableDrop, DurableShards, DurableFailed, FetchFailed, TakePlace, WaitAsSpare, Resize,
                 HangSuspected, ShowRanks, RankSeen, RankTimes, RanksDoing, DeviceFound, FaultInjected,
                 CopiesHashed, ResultsDiffer, ShowState, StateShown>;

std::string encode(const Hello& hello);
std::string encode(const BeatHello& hello);
std::string encode(const NodeMessage& message);
/// Throws CommError if the text is no Hello. From another version only node, host and version are read.
Hello decode_hello(const std::string& text);
/// None if the text is no BeatHello.
std::optional<BeatHello> decode_beat_hello(const std::string& text);
/// Throws CommError if the text is no such message.
NodeMessage decode_node_message(const std::string& text);

}  // namespace trainerd::core::run
