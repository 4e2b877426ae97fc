#pragma once

// What agent and worker say to each other. Plain structs; on the wire one JSON object each.

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

/// What a snapshot is taken for.
enum class SnapshotUse : std::uint8_t {
  checkpoint,  ///< it goes to the disk too
  memory,      ///< it stays in memory: its segment may be filled again once there is a newer one
};
/// A snapshot that the agent holds of one rank of the node, to begin from.
struct HeldShard {
  std::int64_t bytes = 0;
  std::vector<io::TensorSlice> slices;
};
/// What judges of steps go on from (supervise.spikes).
struct SpikeHistory {
  std::vector<std::int64_t> used = {};          ///< by job::SpikeAction: how often the run has done it
  std::vector<double> losses = {}, norms = {};  ///< of the latest steps that were updated, oldest first
};
/// The first message: what to train, where to begin, and what the agent has worked out for all ranks.
struct Start {
  std::int64_t rank = 0;
  std::string job_yaml;     ///< resolved
  std::string resume_path;  ///< of the checkpoint to load; empty: begin from `held`, or from the seed
  std::int64_t step = 0;    ///< steps done by that checkpoint
  std::int64_t cursor = 0;
  std::int64_t tokens = 0;
  bool reports = true;  ///< reports every step and evaluation to its agent
  bool evaluate_first =
      false;  ///< the evaluation after the checkpoint's step is missing: made before the next step
  // Where ranks of several nodes meet; empty when all are on one.
  std::string rendezvous = {};       ///< host:port
  std::string token = {};            ///< by which it knows the job's processes
  std::string interface = {};        ///< name or address by which this node's ranks are reached
  std::string gemm_algorithms = {};  ///< rank 0's: chosen by an earlier run; empty: none was
  std::string data_content = {};     ///< of the training data, as this node's agent has found it
  std::string weights_path = {};     ///< what model.from is: of a run the checkpoint that was its newest
  io::DataOrder order = {};          ///< of the samples
  parallel::Layout layout = {};      ///< of the attempt's world
  std::int64_t node_first = 0;       ///< the ranks of this node follow each other
  std::int64_t node_count = 1;
  std::int64_t attempt = 1;                      ///< of the run, from 1: worlds of one run share a rendezvous
  std::vector<HeldShard> held = {};              ///< by rank of the node: begin from them; empty: do not
  std::int64_t newest_segment = -1;              ///< holds the newest snapshot; -1: none does
  std::vector<std::int64_t> busy_segments = {};  ///< not to be filled until their bytes have been written
  std::string reference_path = {};               ///< of the reference's log-probabilities (loss.dpo)
  std::string reference = {};                    ///< their checksum, of those that the state was made by
  std::vector<std::string> faults_done = {};     ///< of the job's `faults`: not made again
  SpikeHistory spikes = {};
  double peak_flops = 0;             ///< of a CPU, measured by an earlier attempt; 0: to be measured
  std::string weights_content = {};  ///< checksum of what model.from is, where the agent has read it
};
/// Vote to stop: finish the step all ranks agree on, save, end.
struct Stop {};
/// Vote to stop with the next checkpoint that is due.
struct Drain {};
/// The bytes of a snapshot segment are on disk, or given up for newer ones: the segment may be filled again.
struct SnapshotSaved {
  int segment = 0;
};
/// They cannot be written now and will be tried again: a rank that waits for them goes on. The segment stays
/// taken.
struct SnapshotDelayed {
  int segment = 0;
};
/// From now on a checkpoint after so much time; to rank 0, where the job leaves it to the run.
struct SaveEvery {
  double seconds = 0;
};

// ---- Worker to agent ----

/// Memory is allocated, data is open, state is there: the first step follows. It stays on the rank's node;
/// the leader gets a `NodeReady` for all ranks of a node.
struct Ready {
  std::string device;
  int threads = 0;
  double peak_flops = 0;                ///< 0: unknown
  std::vector<io::TensorSlice> slices;  ///< of every snapshot this worker will fill
  std::map<std::string, std::string> environment;
  std::string data_fingerprint;
  std::string gemm_algorithms;   ///< rank 0's choices, to be kept with the run; empty: none were made
  std::string pci_bus_id = {};   ///< of the rank's GPU; empty on a CPU
  std::int64_t data_tokens = 0;  ///< of an epoch
  /// Of its state: what other ranks save. A snapshot to begin from needs them too.
  std::vector<io::TensorSlice> borrowed = {};
  double groups_seconds = 0;         ///< that the rank took to meet those of its groups
  std::string reference = {};        ///< checksum of the reference's log-probabilities (loss.dpo); else empty
  double gemm_flops = 0;             ///< per second, measured before the first step; 0: it was not
  std::vector<LinkTime> links = {};  ///< to ranks of other nodes, measured before the first step
  CanaryResult canary = {};
};
/// How far the log-probabilities of the reference are (loss.dpo), before `Ready`; of rank 0.
struct ReferenceProgress {
  std::int64_t done = 0, pairs = 0;
  double seconds = 0;  ///< since their computation began
};
/// The most that this rank's step has taken of its planned memory so far; once a run.
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
/// A part of what a traced step was on this rank, in order; `last` ends it.
struct StepTrace {
  std::int64_t step = 0;
  std::vector<io::TraceSlice> slices;
  bool last = false;
};
/// This process was signalled to stop on its own: it has used up its CPU time.
struct StopNeeded {
  std::string reason;
};
/// Hashes of what other ranks hold too (train::CopyHashes).
struct CopiesHashed {
  std::int64_t rank = 0;
  std::int64_t step = 0;                   ///< they are of the state after it
  std::vector<std::string> names = {};     ///< in the first message of an attempt; then empty
  std::vector<std::uint64_t> hashes = {};  ///< by name
  std::int64_t attempt = 1;                ///< between nodes
};
/// Two computations of a step from the same state and batch differ, in what is this rank's, or its state does
/// not stay as it is.
struct ResultsDiffer {
  enum class Found : std::uint8_t {
    one_of_three,   ///< of a step that is verified: the others agree, and the step goes on with theirs
    no_two_alike,   ///< of three: the rank waits for its end
    after_spike,    ///< the step was computed again because of a spike
    changed_state,  ///< before the update it is not what the update before left; the rank waits for its end
  };
  std::int64_t rank = 0;
  std::int64_t step = 0;
  std::vector<std::string> tensors = {};  ///< whose gradients or state differ, or "loss"; the first few
  std::vector<std::int64_t> ranks = {};   ///< all that send this message for the step
  Found found = Found::one_of_three;
  std::int64_t attempt = 1;  ///< between nodes
};
/// What is done about a spike, once for all ranks. After a rollback the ranks wait for their end.
struct SpikeActed {
  std::int64_t step = 0;
  job::SpikeAction action = job::SpikeAction::retry;
  std::int64_t used = 0;     ///< times that the run has done it, this one included
  std::string message = {};  ///< for people
  std::int64_t cursor = 0;   ///< of the samples behind the step's
};
/// One of the job's `faults` happens now.
struct FaultInjected {
  std::string id;
  std::string message;                          ///< for people
  std::optional<job::FaultKind> at_agent = {};  ///< what breaks at the agent of this node
  double seconds = 0;                           ///< for so long, if it passes
  std::int64_t rank = 0, xid = 0;               ///< of device_error
};
/// The rank ends by an error.
struct Failed {
  base::ErrorKind kind = base::ErrorKind::device;
  std::string message = {};
  bool retry = false;  ///< a failure of the machine in the step loop: the workers may start again
};
/// No more steps; the last snapshot may not be on the disk yet. `stopped`: by vote, before the last step or
/// the evaluation after it.
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
// Throw CommError on text that is not such a message: the two ends are one binary, so that is a broken peer.
AgentMessage decode_agent_message(const std::string& text);
WorkerMessage decode_worker_message(const std::string& text);

}  // namespace trainerd::core::run
