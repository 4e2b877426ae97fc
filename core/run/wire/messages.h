#pragma once

// Messages between an agent and its workers. They are plain structs, sent as one JSON object each.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/job/faults_options.h"
#include "core/job/supervise_options.h"
#include "core/run/preflight/preflight.h"
#include "io/checkpoint/checkpoint.h"
#include "io/records/records.h"
#include "io/records/trace.h"
#include "io/tokens/token_blend.h"
#include "kernels/base/error.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::run {

// ---- Agent to worker ----

/// The purpose of a snapshot.
enum class SnapshotUse : std::uint8_t {
  checkpoint,  ///< it is also written to the disk
  memory,      ///< it stays in memory; its segment is free once there is a newer snapshot
};
/// A snapshot of one rank of the node, held by the agent, from which workers begin.
struct HeldShard {
  std::int64_t bytes = 0;
  std::vector<io::TensorSlice> slices;
};
/// The state with which a new attempt's step judges begin (supervise.spikes).
struct SpikeHistory {
  std::vector<std::int64_t> used = {};          ///< by job::SpikeAction: number of uses in the run
  std::vector<double> losses = {}, norms = {};  ///< of the latest updated steps, oldest first
};
/// The first message to a worker: what to train, where to begin, and decisions of the agent for all ranks.
struct Start {
  std::int64_t rank = 0;
  std::string job_yaml;     ///< the resolved job
  std::string resume_path;  ///< checkpoint to load; empty: begin from `held`, or from the seed or weights
  std::int64_t step = 0;    ///< steps done at the start
  std::int64_t cursor = 0;
  std::int64_t tokens = 0;
  bool reports = true;          ///< the rank sends a record of every step and evaluation
  bool evaluate_first = false;  ///< do the missing evaluation after that step first
  // Rendezvous of ranks on several nodes; empty if all ranks are on one.
  std::string rendezvous = {};       ///< host:port
  std::string token = {};            ///< authenticates the job's processes
  std::string interface = {};        ///< name or address of the interface for this node's ranks
  std::string gemm_algorithms = {};  ///< for rank 0: chosen by an earlier run; empty: none
  std::string data_content = {};     ///< content of the training data, as found by this node's agent
  std::string weights_path = {};     ///< resolved model.from: for a run, its newest checkpoint
  io::DataOrder order = {};          ///< order of the samples
  parallel::Layout layout = {};      ///< of the attempt's world
  std::int64_t node_first = 0;       ///< this node's ranks are consecutive
  std::int64_t node_count = 1;
  std::int64_t attempt = 1;          ///< counts attempts of the run from 1; its key prefix in the store
  std::vector<HeldShard> held = {};  ///< by the rank's place in the node: begin from them; empty: do not
  std::int64_t newest_segment = -1;  ///< segment with the newest snapshot; -1: none
  std::vector<std::int64_t> busy_segments = {};  ///< must not be filled until they are released
  std::string reference_path = {};               ///< file of the reference's log-probabilities (loss.dpo)
  std::string reference = {};                    ///< their checksum, if the state was trained with them
  std::vector<std::string> faults_done = {};     ///< ids of the job's faults that were made already
  SpikeHistory spikes = {};
  double peak_flops = 0;             ///< of a CPU, measured by an earlier attempt; 0: to be measured
  std::string weights_content = {};  ///< checksum of what model.from is, where the agent has read it
  /// `held` are shards of ranks of any layout, which hold all that this node's ranks need.
  bool gathered = false;
};
/// Vote to stop: finish the step that all ranks agree on, save, end.
struct Stop {};
/// Vote to stop with the next checkpoint that is due.
struct Drain {};
/// The bytes of a snapshot segment are on disk, or given up for newer ones: the segment may be filled again.
struct SnapshotSaved {
  int segment = 0;
};
/// A segment's bytes cannot be written now and will be tried again: a rank that waits for that continues. The
/// segment stays taken.
struct SnapshotDelayed {
  int segment = 0;
};
/// To rank 0 with checkpoint.every: auto: take checkpoints at this interval from now on.
struct SaveEvery {
  double seconds = 0;
};

// ---- Worker to agent ----

/// The rank has memory, data and its state; the first step follows. The message stays on the rank's node; the
/// leader gets one `NodeReady` for all ranks of a node.
struct Ready {
  std::string device;
  int threads = 0;
  double peak_flops = 0;                ///< 0: unknown
  std::vector<io::TensorSlice> slices;  ///< slices in every snapshot of this worker
  std::map<std::string, std::string> environment;
  std::string data_fingerprint;
  std::string gemm_algorithms;   ///< rank 0's choices, to be kept with the run; empty: none
  std::string pci_bus_id = {};   ///< of the rank's GPU; empty on a CPU
  std::int64_t data_tokens = 0;  ///< tokens of an epoch
  /// Slices of this rank's state that other ranks save. A start from a snapshot needs them too.
  std::vector<io::TensorSlice> borrowed = {};
  double groups_seconds = 0;         ///< that the rank took to meet those of its groups
  std::string reference = {};        ///< checksum of the reference's log-probabilities (loss.dpo); else empty
  double gemm_flops = 0;             ///< per second, measured before the first step; 0: it was not
  std::vector<LinkTime> links = {};  ///< to ranks of other nodes, measured before the first step
  CanaryResult canary = {};
};
/// Progress of the reference's log-probabilities (loss.dpo), before `Ready`; sent by rank 0.
struct ReferenceProgress {
  std::int64_t done = 0, pairs = 0;
  double seconds = 0;  ///< since the computation began
};
/// The largest use of this rank's planned memory so far; sent once per run.
struct MemoryUsed {
  std::int64_t bytes = 0;
};
struct SnapshotReady {
  int segment = 0;
  SnapshotUse use = SnapshotUse::checkpoint;
  std::int64_t bytes = 0;
  std::int64_t step = 0;
  std::int64_t cursor = 0;
  std::int64_t tokens = 0;
  double seconds = 0;  ///< checkpoint stall
};
/// Part of the trace of a step on this rank, in order; `last` marks the last part.
struct StepTrace {
  std::int64_t step = 0;
  std::vector<io::TraceSlice> slices;
  bool last = false;
};
/// This process received a stop signal of its own: it has used up its CPU time (SIGXCPU).
struct StopNeeded {
  std::string reason;
};
/// Hashes of state that other ranks hold too (train::CopyHashes).
struct CopiesHashed {
  std::int64_t rank = 0;
  std::int64_t step = 0;                   ///< the state after this step
  std::vector<std::string> names = {};     ///< in the first message of an attempt; then empty
  std::vector<std::uint64_t> hashes = {};  ///< one per name
  std::int64_t attempt = 1;                ///< set between nodes
};
/// Two computations of a step from the same state and batch differ in this rank's own results, or this rank's
/// state changed between two updates.
struct ResultsDiffer {
  enum class Found : std::uint8_t {
    one_of_three,   ///< the other two computations of a verified step agree, and one of them is used
    no_two_alike,   ///< all three differ; the rank waits to be ended
    after_spike,    ///< the step was computed again because of a spike
    changed_state,  ///< the state differs from that after the last update; the rank waits to be ended
  };
  std::int64_t rank = 0;
  std::int64_t step = 0;
  std::vector<std::string> tensors = {};  ///< whose gradients or state differ, or "loss"; the first few
  std::vector<std::int64_t> ranks = {};   ///< all ranks that send this message for the step
  Found found = Found::one_of_three;
  std::int64_t attempt = 1;  ///< set between nodes
};
/// The action on a spike, sent once for all ranks. After a rollback the ranks wait to be ended.
struct SpikeActed {
  std::int64_t step = 0;
  job::SpikeAction action = job::SpikeAction::retry;
  std::int64_t used = 0;     ///< number of uses in the run, including this one
  std::string message = {};  ///< for the log
  std::int64_t cursor = 0;   ///< first sample after this step's
};
/// One of the job's `faults` is about to happen.
struct FaultInjected {
  std::string id;
  std::string message;                          ///< for people
  std::optional<job::FaultKind> at_agent = {};  ///< what breaks at the agent of this node
  double seconds = 0;                           ///< for so long, if it passes
  std::int64_t rank = 0, xid = 0;               ///< of device_error
};
/// The rank ends with an error.
struct Failed {
  base::ErrorKind kind = base::ErrorKind::device;
  std::string message = {};
  bool retry = false;  ///< a machine failure in the step loop: the workers may start again
};
/// The rank does no more steps; its last snapshot may not be on the disk yet. `stopped`: by a vote, before
/// the last step or the evaluation after it.
struct Finished {
  std::int64_t step = 0;
  bool stopped = false;
};

using AgentMessage = std::variant<Start, Stop, Drain, SnapshotSaved, SnapshotDelayed, SaveEvery>;
using WorkerMessage =
    std::variant<Ready, io::StepRecord, io::EvaluationRecord, io::EvaluationProgress, io::NoticeRecord,
                 io::RankStatusRecord, StepTrace, MemoryUsed, SnapshotReady, StopNeeded, FaultInjected,
                 CopiesHashed, ResultsDiffer, SpikeActed, ReferenceProgress, Failed, Finished>;

std::string encode(const AgentMessage& message);
std::string encode(const WorkerMessage& message);
// Throw CommError if the text is no such message: both ends are the same binary, so the peer is broken.
AgentMessage decode_agent_message(const std::string& text);
WorkerMessage decode_worker_message(const std::string& text);

}  // namespace trainerd::core::run
