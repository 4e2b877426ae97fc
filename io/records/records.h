#pragma once

// Plain records that go from a worker to the agent and from there to every sink. No pointers, no models.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "io/records/wall_ledger.h"
#include "kernels/base/ledger.h"
#include "kernels/nvml/nvml.h"

namespace trainerd::io {

/// Of pairs of answers, by a model and its reference: beta (log-probability - the reference's), of the chosen
/// and of the rejected answer, means over the pairs; `margin` is their difference, `accuracy` the share of
/// pairs of which it is above 0.
struct PairRewards {
  double margin = 0, accuracy = 0, chosen = 0, rejected = 0;

  bool operator==(const PairRewards&) const = default;
};

/// One optimizer step. Seconds are wall time; `step` counts from 1.
struct StepRecord {
  std::int64_t step = 0;
  std::int64_t tokens = 0;  ///< trained on so far, this step included
  /// Cross entropy, with label smoothing where the job has it and without z-loss: mean over the global
  /// batch's tokens, natural log. With loss.dpo its loss: mean over the pairs.
  double loss = 0;
  std::optional<double> z_loss = {};        ///< with loss.z_loss: that term
  std::optional<PairRewards> rewards = {};  ///< with loss.dpo
  double grad_norm = 0;                     ///< before clipping
  /// With metrics.grad_norms, at its steps: the same of groups of parameters, by name.
  std::vector<std::pair<std::string, double>> grad_norms = {};
  double learning_rate = 0;
  bool skipped = false;  ///< by supervise.spikes: nothing was updated
  double step_seconds = 0;
  double tokens_per_second = 0;
  std::optional<double> mfu;  ///< absent when the device's peak is unknown
  base::TimeLedger time;
  std::int64_t widened_gemms = 0;        ///< so far: bf16 GEMMs computed in fp32
  std::int64_t reference_gemms = 0;      ///< so far: GEMMs that oneDNN computed by its slow reference loops
  std::int64_t own_attention = 0;        ///< so far: attention calls on a GPU that no library served
  std::int64_t missed_gemm_choices = 0;  ///< so far: GEMMs that no timed choice applied to
  std::int64_t attention_fallbacks = 0;  ///< so far: those of them that were planned for the library
  double wall_time = 0;  ///< when it was done, Unix seconds; 0: a log from before this was kept
  // A line of samples.jsonl, not of steps.jsonl: the global batch's place in the order of samples, how many
  // of its tokens count in the loss (absent: all), and of a blend how many of its samples each source gave.
  std::int64_t first_sample = 0, samples = 0;
  std::optional<std::int64_t> counted_tokens = {};
  std::vector<std::int64_t> source_samples = {};
};

/// A line of samples.jsonl: the samples of one step. A step that is repeated keeps the line of its last
/// attempt alone.
struct SamplesRecord {
  std::int64_t step = 0;
  std::int64_t first = 0;  ///< place in the order of samples, from 0
  std::int64_t count = 0;
  std::int64_t attempt = 1;                         ///< of the run: a start, resume or restart, from 1
  std::vector<std::int64_t> sources = {};           ///< of a blend: samples of each, in the job's order
  std::optional<std::int64_t> counted_tokens = {};  ///< tokens that count in the loss; absent: all

  bool operator==(const SamplesRecord&) const = default;
};

/// What an evaluation says of one validation set.
struct ValidationRecord {
  std::string set;          ///< its name
  double loss = 0;          ///< mean over its tokens that count, natural log; with loss.dpo over its pairs
  std::int64_t tokens = 0;  ///< of its global batches
  /// The loss of all tokens in bits over the bytes of text that they stand for; absent where these are not
  /// known.
  std::optional<double> bits_per_byte = {};
  std::optional<PairRewards> rewards = {};  ///< with loss.dpo: the loss has no perplexity then
};
/// What an evaluation says of one set of questions with several choices.
struct ChoiceRecord {
  std::string set;
  std::int64_t questions = 0;
  double accuracy = 0;       ///< share of questions whose right choice is the likeliest
  double accuracy_norm = 0;  ///< the same by likelihood per character
};

/// `loss`, `tokens`, `bits_per_byte` and `rewards` are of the first validation set.
struct EvaluationRecord {
  std::int64_t step = 0;
  double loss = 0;
  std::int64_t tokens = 0;
  double seconds = 0;  ///< of all of it
  double wall_time = 0;
  std::optional<double> bits_per_byte = {};
  std::vector<ValidationRecord> sets = {};  ///< all of a job that names some, in its order; else none
  std::vector<ChoiceRecord> choices = {};
  std::optional<PairRewards> rewards = {};
  bool averaged = false;  ///< of the averaged weights (evaluate.ema), not of those of the step
};

/// exp(loss): of how many tokens a uniform choice would be as hard. Infinite where it is too large.
double perplexity(double loss);

/// Progress of a long evaluation; sent several times before its record.
struct EvaluationProgress {
  std::int64_t step = 0;  ///< that it follows
  std::int64_t done = 0;  ///< global batches
  std::int64_t batches = 0;
};

struct CheckpointRecord {
  std::int64_t step = 0;
  std::int64_t bytes = 0;
  double snapshot_seconds = 0;  ///< checkpoint stall
  double write_seconds = 0;     ///< hash, write, fsync, rename
  std::string path;
  double wall_time = 0;
};

/// The state of every rank of a node after a step, complete in the node's memory.
struct SnapshotRecord {
  std::int64_t step = 0;
  double seconds = 0;  ///< checkpoint stall
};

/// A snapshot of a node that was sent to its partner.
struct PartnerCopyRecord {
  std::int64_t step = 0;
  std::int64_t bytes = 0;
  double seconds = 0;
  bool kept = false;  ///< false: it did not arrive
};

/// A try of a checkpoint that failed. The run goes on.
struct CheckpointFailureRecord {
  enum class What : unsigned char { write, clean_up };
  std::int64_t step = 0;
  What what = What::write;  ///< clean_up: the checkpoint is complete, older ones could not be removed
};

/// A checkpoint was copied to the durable tier, or a try failed. The run goes on.
struct DurableRecord {
  std::int64_t step = 0;
  std::int64_t bytes = 0;  ///< that were sent
  bool failed = false;
};

/// How often a run with `checkpoint.every: auto` saves, and why.
struct CadenceRecord {
  /// Of the mean time between failures: the job, its cluster's preset, or the run's own history.
  enum class Source : std::uint8_t { given, cluster, history };
  double interval_seconds = 0;
  double mtbf_seconds = 0;
  Source source = Source::history;
  double stall_seconds = 0;  ///< checkpoint stall of a save
  double write_seconds = 0;  ///< of a save
};
/// "given", "cluster", "history".
const char* name_of(CadenceRecord::Source source);

/// The plan's figures beside the measured ones.
struct PredictionTerm {
  enum class Kind : std::uint8_t { step_seconds, part_seconds, memory_bytes };
  Kind kind = Kind::part_seconds;
  std::string name;  ///< of a part of the ledger; "step_seconds", "memory_bytes" of the others
  double predicted = 0;
  double measured = 0;
  double error = 0;  ///< measured over predicted, less 1; of a part of the ledger: the difference over the
                     ///< predicted step
};
PredictionTerm::Kind prediction_kind(std::string_view name);
/// Once a run: medians over some of its first steps.
struct PredictionRecord {
  std::int64_t first_step = 0, last_step = 0;
  std::vector<PredictionTerm> terms;
};

enum class NoticeKind : std::uint8_t {
  start,
  resume,
  change,
  warning,
  stop,
  failure,
  finish,
  restart,
  durable,
  node,
  hang,
  straggler,
  injected,
  corruption,
  withdrawn,
  spike,
  recovered,
  graphs,
  device
};
/// "start", "resume", ...: the `event` of its line.
const char* name_of(NoticeKind kind);

/// How far the attempt before a resume had come.
struct EarlierAttempt {
  std::int64_t last_step = 0;  ///< that it logged
  double lost_seconds = 0;     ///< of the steps after the checkpoint, which are done again
  double wall_time = 0;        ///< of its last step
};

/// What it took to go on after a failure, in seconds.
struct Recovery {
  double noticed = 0;         ///< when the failure was noticed, Unix time
  double decide_seconds = 0;  ///< from then until all ranks had ended and it was known where they begin
  double ready_seconds = 0;   ///< from then until every rank was ready for its first step
  double groups_seconds = 0;  ///< of that, for the ranks' groups: of node 0's rank that took longest
  double total_seconds = 0;   ///< from `noticed` until the next step began
};

/// Something that an operator wants to know of a run, and when it was: how it began, what changed, what was
/// degraded, how it ended.
struct NoticeRecord {
  NoticeKind kind = NoticeKind::warning;
  std::int64_t step = 0;             ///< the last step done
  std::string message;               ///< one line
  std::vector<std::string> details;  ///< one item each, as for each changed key; may be empty
  double wall_time = 0;
  std::optional<EarlierAttempt> earlier = {};  ///< of a start, resume or restart after another attempt
  double start_seconds = 0;                    ///< of a start or resume: since its process began
  std::optional<Recovery> recovery = {};       ///< of `recovered`
};

/// The workers start again in the same run: steps after `step` are done again.
enum class RestoreTier : std::uint8_t { start, disk, memory, partner };
/// "start" (the seed, or model.from), "disk", "memory", "partner" (where that kept a node's snapshot).
const char* name_of(RestoreTier tier);
struct RestartRecord {
  RestoreTier tier = RestoreTier::start;  ///< what the state comes from
  std::int64_t step = 0;
  std::int64_t tokens = 0;  ///< trained on by then
};

/// A finding before the first step that ended nothing.
struct PreflightRecord {
  std::string part;  ///< "device", "storage", "clock", "link"
};

/// What a link between ranks of two nodes does, measured before the first step.
struct LinkRecord {
  std::int64_t from_rank = 0, to_rank = 0;
  std::int64_t from_node = 0, to_node = 0;
  double latency_seconds = 0;  ///< one way
  double bytes_per_second = 0;
};

/// Training was held up, and by what (core/run/supervise/hang_verdict.h).
struct HangRecord {
  std::string kind;
};
/// A rank computes longer per step than its peers.
struct StragglerRecord {
  std::int64_t rank = 0, node = 0;
  double excess = 0;  ///< over their median, less 1; 0: it does no longer
};
/// What these ranks hold differs from what others hold of the same.
struct CorruptionRecord {
  std::vector<std::int64_t> ranks = {};
};
/// A step was out of line, and what was done about it: "retry", "skip" or "rollback".
struct SpikeRecord {
  std::string action;
};

/// What happens beside the steps: a line of events.jsonl.
using EventRecord = std::variant<EvaluationRecord, CheckpointRecord, NoticeRecord>;

/// What a process has read of an object store since its start.
struct ObjectReads {
  std::int64_t requests = 0;        ///< tries included
  std::int64_t retries = 0;         ///< tries after one that failed
  std::int64_t bytes = 0;           ///< that came from the store
  std::int64_t cached_bytes = 0;    ///< that came from the node's cache
  std::int64_t cache_failures = 0;  ///< blocks that could not be kept there, or were damaged
  std::int64_t renewals = 0;        ///< of credentials
};

/// What one rank does, about once a second, between two steps. It counts from its worker's start.
struct RankStatusRecord {
  std::int64_t rank = 0;
  std::int64_t step = 0;               ///< the last one done
  std::int64_t steps = 0;              ///< done
  double step_seconds = 0;             ///< mean of the steps since the status before
  base::TimeLedger time;               ///< of all its steps
  std::int64_t memory_used_bytes = 0;  ///< the most that its step has taken of its plan
  std::int64_t memory_planned_bytes = 0;
  std::int64_t resident_bytes = 0;        ///< host memory of its process; 0: not known
  std::optional<ObjectReads> reads = {};  ///< of its data; none: it is local
};

/// The GPU of one rank at one moment.
struct DeviceRecord {
  std::int64_t rank = 0;
  kernels::DeviceReading reading;
};

/// What the GPU of one rank, or its driver, reports: and of what kind
/// (core/run/supervise/device_judge.h).
struct DeviceFindingRecord {
  std::int64_t rank = 0;
  std::string kind;
};

/// How a file or stream of output keeps up with what is written to it.
struct OutletRecord {
  std::string name;           ///< "steps.jsonl", "console"
  std::int64_t failures = 0;  ///< writes that failed
  std::int64_t waiting = 0;   ///< lines to be written
  std::int64_t dropped = 0;   ///< lines that will not be
  std::string error;          ///< why lines wait; empty: the last write succeeded

  bool operator==(const OutletRecord&) const = default;
};

/// Agents of a job of several nodes.
struct NodesRecord {
  std::int64_t spares = 0;  ///< that wait to take a lost node's place
  std::int64_t lost = 0;    ///< nodes, since this process began
};

/// What came to the rendezvous of several nodes.
struct RendezvousRecord {
  std::int64_t refused = 0;  ///< connections that none of the job's processes made
};

/// What the attempts before this process did, as far as its logs say.
struct EarlierRun {
  std::int64_t attempts = 0;  ///< starts, resumes and restarts
  double began = 0;           ///< the first of them, Unix seconds; 0: not known
  /// Attempts that ended without a request: killed, or by a failure.
  std::int64_t interruptions = 0;
  double useful_seconds = 0;  ///< of the steps that still count, without checkpoints
  bool ended = false;         ///< the last of them was done, stopped or failed, and could say so
  WallLedger wall = {};       ///< what their time went into
};

/// Takes a notice that begins or ends something.
void add_to(WallLedger& ledger, const NoticeRecord& notice);

/// What is known before the first step.
struct RunInfo {
  std::string name;
  std::int64_t node = 0;  ///< of the process that records it
  std::string output;
  std::string device;
  int threads = 0;
  std::int64_t parameters = 0;
  std::int64_t steps = 0;
  std::int64_t start_step = 0;    ///< steps already done, by the checkpoint resumed from
  std::int64_t start_tokens = 0;  ///< trained on by then
  std::int64_t tokens_per_step = 0;
  double flops_per_token = 0;
  std::optional<double> peak_flops;  ///< of the device at the compute precision, dense
  std::string precision;
  std::int64_t memory_planned_bytes = 0;
  std::vector<std::pair<std::string, std::int64_t>> memory_regions;
  std::vector<std::pair<std::string, std::int64_t>> memory_uses =
      {};  ///< the same bytes by what is kept there: parameters, gradients, ...
  std::string version;
  std::string commit = {};
  std::string command = {};  ///< the command line
  std::string host = {};
  std::string layout = {};                 ///< "tp1 pp1 dp2 on 2 CPU ranks"
  std::string data = {};                   ///< files and format
  std::string adapters = {};               ///< what is trained in place of the parameters; empty: these are
  std::int64_t data_tokens = 0;            ///< of an epoch; 0: not known
  std::optional<EarlierRun> earlier = {};  ///< the first node's, whose logs they are
  bool durable = false;                    ///< its checkpoints are copied to a durable tier
  bool peak_measured = false;  ///< `peak_flops` is the machine's fastest GEMM, not its maker's figure
};

/// How a run ended.
struct RunSummary {
  std::int64_t step = 0;
  double wall_seconds = 0;
  std::string outcome;  ///< "done", "stopped by SIGTERM", or the error's first line
};

// samples.jsonl: one JSON object per line, one line per step, with the names above; `sources` only for a
// blend. Throws DataError for what is no such line.
std::string to_json_line(const SamplesRecord& record);
SamplesRecord parse_samples_record(const std::string& text);

// steps.jsonl: one JSON object per line, one line per step, with the names above and `time` as an object.
std::string to_json_line(const StepRecord& record);
/// Throws DataError on text that is not such a line.
StepRecord parse_step_record(const std::string& line);

// events.jsonl: one JSON object a line, `event` ("evaluation", "checkpoint" or a notice's kind) and the names
// above.
std::string to_json_line(const EventRecord& record);
/// Throws DataError on text that is not such a line.
EventRecord parse_event_record(const std::string& line);

}  // namespace trainerd::io
