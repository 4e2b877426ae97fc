#pragma once

// Plain records that go from a worker to the agent and from there to every sink. They have no pointers.

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

/// DPO rewards of a model against its reference: beta (log-probability - reference's log-probability) of the
/// chosen and of the rejected answer, means over the pairs. `margin` is their difference, `accuracy` the
/// fraction of pairs with a difference above 0.
struct PairRewards {
  double margin = 0, accuracy = 0, chosen = 0, rejected = 0;

  bool operator==(const PairRewards&) const = default;
};

/// One optimizer step. Seconds are wall time; `step` counts from 1.
struct StepRecord {
  std::int64_t step = 0;
  std::int64_t tokens = 0;  ///< trained so far, including this step
  /// Cross entropy with label smoothing (if set), without z-loss: mean over the global batch's tokens,
  /// natural log. With loss.dpo the DPO loss: mean over the pairs.
  double loss = 0;
  std::optional<double> z_loss = {};          ///< the z-loss term, with loss.z_loss
  std::optional<double> expert_balance = {};  ///< the balance term, with loss.expert_balance
  /// By layer, for models with experts: the tokens of the expert with the most, over the mean; 1 is even.
  std::vector<double> expert_load = {};
  std::optional<PairRewards> rewards = {};  ///< with loss.dpo
  double grad_norm = 0;                     ///< before clipping
  /// Norms per group of parameters, by name; only with metrics.grad_norms and at its steps.
  std::vector<std::pair<std::string, double>> grad_norms = {};
  double learning_rate = 0;
  bool skipped = false;                   ///< by supervise.spikes, or for an overflow: no update was made
  std::optional<double> loss_scale = {};  ///< with precision.loss_scale: the factor that gradients had
  bool overflow = false;                  ///< gradients overflowed at that scale
  double step_seconds = 0;
  double tokens_per_second = 0;
  std::optional<double> mfu;  ///< absent if the device's peak is unknown
  base::TimeLedger time;
  std::int64_t widened_gemms = 0;        ///< so far: bf16 or fp16 GEMMs computed in fp32
  std::int64_t reference_gemms = 0;      ///< so far: GEMMs that oneDNN computed with its slow reference loops
  std::int64_t own_attention = 0;        ///< so far: attention calls on a GPU without a library kernel
  std::int64_t missed_gemm_choices = 0;  ///< so far: GEMMs without an applicable timed choice
  std::int64_t attention_fallbacks = 0;  ///< so far: those of own_attention that were planned for the library
  double wall_time = 0;                  ///< time of completion, Unix seconds; 0: an old log without it
  // Written to samples.jsonl, not to steps.jsonl: the global batch's position in the order of samples, its
  // number of tokens that count in the loss (absent: all), and for a blend the number of samples from each
  // source.
  std::int64_t first_sample = 0, samples = 0;
  std::optional<std::int64_t> counted_tokens = {};
  std::vector<std::int64_t> source_samples = {};
};

/// A line of samples.jsonl: the samples of one step. For a repeated step only the line of the last attempt is
/// kept.
struct SamplesRecord {
  std::int64_t step = 0;
  std::int64_t first = 0;  ///< position in the order of samples, from 0
  std::int64_t count = 0;
  std::int64_t attempt = 1;                ///< attempt of the run (a start, resume or restart), from 1
  std::vector<std::int64_t> sources = {};  ///< for a blend: samples per source, in the job's order
  std::optional<std::int64_t> counted_tokens = {};  ///< tokens that count in the loss; absent: all

  bool operator==(const SamplesRecord&) const = default;
};

/// Result of an evaluation on one validation set.
struct ValidationRecord {
  std::string set;          ///< its name
  double loss = 0;          ///< mean over its tokens that count, natural log; with loss.dpo over its pairs
  std::int64_t tokens = 0;  ///< in its global batches
  /// Loss of all tokens in bits, divided by the bytes of text that they stand for; absent if the bytes are
  /// unknown.
  std::optional<double> bits_per_byte = {};
  std::optional<PairRewards> rewards = {};  ///< with loss.dpo; the loss then has no perplexity
};
/// Result of an evaluation on one set of multiple-choice questions.
struct ChoiceRecord {
  std::string set;
  std::int64_t questions = 0;
  double accuracy = 0;       ///< fraction of questions whose right choice has the highest likelihood
  double accuracy_norm = 0;  ///< the same by likelihood per character
};

/// `loss`, `tokens`, `bits_per_byte` and `rewards` belong to the first validation set.
struct EvaluationRecord {
  std::int64_t step = 0;
  double loss = 0;
  std::int64_t tokens = 0;
  double seconds = 0;  ///< of the whole evaluation
  double wall_time = 0;
  std::optional<double> bits_per_byte = {};
  std::vector<ValidationRecord> sets = {};  ///< all, in the job's order, if the job names some; else none
  std::vector<ChoiceRecord> choices = {};
  std::optional<PairRewards> rewards = {};
  bool averaged = false;  ///< uses the averaged weights (evaluate.ema) instead of the step's weights
};

/// Returns exp(loss): the number of equally likely tokens with that loss. Infinite on overflow.
double perplexity(double loss);

/// Progress of a long evaluation, sent several times before its record.
struct EvaluationProgress {
  std::int64_t step = 0;  ///< the step that it follows
  std::int64_t done = 0;  ///< global batches
  std::int64_t batches = 0;
};

struct CheckpointRecord {
  std::int64_t step = 0;
  std::int64_t bytes = 0;
  double snapshot_seconds = 0;  ///< checkpoint stall
  double write_seconds = 0;     ///< hash, write, fsync
  std::string path;
  double wall_time = 0;
};

/// A snapshot of every rank of a node after a step, complete in the node's memory.
struct SnapshotRecord {
  std::int64_t step = 0;
  double seconds = 0;  ///< checkpoint stall
};

/// A node's snapshot that was sent to its partner.
struct PartnerCopyRecord {
  std::int64_t step = 0;
  std::int64_t bytes = 0;
  double seconds = 0;
  bool kept = false;  ///< false: the copy failed
};

/// A failed attempt to write a checkpoint. The run continues.
struct CheckpointFailureRecord {
  enum class What : unsigned char { write, clean_up };
  std::int64_t step = 0;
  What what = What::write;  ///< clean_up: the checkpoint is complete, but older ones could not be removed
};

/// A copy of a checkpoint to the durable tier, successful or failed. The run continues.
struct DurableRecord {
  std::int64_t step = 0;
  std::int64_t bytes = 0;  ///< bytes sent
  bool failed = false;
};

/// Save interval of a run with `checkpoint.every: auto`, and its inputs.
struct CadenceRecord {
  /// Source of the mean time between failures: the job, its cluster's preset, or the run's own history.
  enum class Source : std::uint8_t { given, cluster, history };
  double interval_seconds = 0;
  double mtbf_seconds = 0;
  Source source = Source::history;
  double stall_seconds = 0;  ///< checkpoint stall per save
  double write_seconds = 0;  ///< per save
};
/// "given", "cluster", "history".
const char* name_of(CadenceRecord::Source source);

/// A predicted figure of the plan beside the measured one.
struct PredictionTerm {
  enum class Kind : std::uint8_t { step_seconds, part_seconds, memory_bytes };
  Kind kind = Kind::part_seconds;
  std::string name;  ///< name of a ledger part; else "step_seconds" or "memory_bytes"
  double predicted = 0;
  double measured = 0;
  double error = 0;  ///< measured / predicted - 1; for a ledger part: difference / predicted step time
};
PredictionTerm::Kind prediction_kind(std::string_view name);
/// Once per run: medians over some of its first steps.
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
  device,
  overflow
};
/// Returns "start", "resume", ...: the `event` of its line.
const char* name_of(NoticeKind kind);

/// How far the attempt before a resume came.
struct EarlierAttempt {
  std::int64_t last_step = 0;  ///< last logged step
  double lost_seconds = 0;     ///< total time of the steps after the checkpoint, which are repeated
  double wall_time = 0;        ///< of its last step
};

/// Duration of a recovery after a failure, in seconds.
struct Recovery {
  double noticed = 0;         ///< when the failure was detected, Unix time
  double decide_seconds = 0;  ///< from then until all ranks had ended and the restart point was chosen
  double ready_seconds = 0;   ///< from then until every rank was ready for its first step
  double groups_seconds = 0;  ///< part of ready_seconds for the ranks' groups; the slowest rank of node 0
  double total_seconds = 0;   ///< from `noticed` until the next step began
};

/// An event that an operator wants to know: how a run began, what changed, what was degraded, how it ended.
struct NoticeRecord {
  NoticeKind kind = NoticeKind::warning;
  std::int64_t step = 0;             ///< last completed step
  std::string message;               ///< one line
  std::vector<std::string> details;  ///< one item each, such as one per changed key; may be empty
  double wall_time = 0;
  std::optional<EarlierAttempt> earlier = {};  ///< set for a start, resume or restart after another attempt
  double start_seconds = 0;                    ///< for a start or resume: time since its process began
  std::optional<Recovery> recovery = {};       ///< set for kind `recovered`
};

/// The workers restart in the same run. Steps after `step` are repeated.
enum class RestoreTier : std::uint8_t { start, disk, memory, partner };
/// Returns "start" (the seed, or model.from), "disk", "memory" or "partner" (a node's snapshot kept by its
/// partner).
const char* name_of(RestoreTier tier);
struct RestartRecord {
  RestoreTier tier = RestoreTier::start;  ///< source of the state
  std::int64_t step = 0;
  std::int64_t tokens = 0;  ///< trained by then
};

/// A finding of the checks before the first step that did not end the run.
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

/// Training was held up; `kind` names the cause (core/run/supervise/hang_verdict.h).
struct HangRecord {
  std::string kind;
};
/// A rank that computes longer per step than its peers.
struct StragglerRecord {
  std::int64_t rank = 0, node = 0;
  double excess = 0;  ///< time / median of the peers - 1; 0: no longer a straggler
};
/// The state of these ranks differs from other ranks' copies of the same state.
struct CorruptionRecord {
  std::vector<std::int64_t> ranks = {};
};
/// An abnormal step and the response to it: "retry", "skip" or "rollback".
struct SpikeRecord {
  std::string action;
};

/// Events besides the steps; each is a line of events.jsonl.
using EventRecord = std::variant<EvaluationRecord, CheckpointRecord, NoticeRecord>;

/// Reads of a process from an object store since its start.
struct ObjectReads {
  std::int64_t requests = 0;        ///< including retries
  std::int64_t retries = 0;         ///< tries after one that failed
  std::int64_t bytes = 0;           ///< from the store
  std::int64_t cached_bytes = 0;    ///< from the node's cache
  std::int64_t cache_failures = 0;  ///< blocks that could not be stored there, or were damaged
  std::int64_t renewals = 0;        ///< renewals of credentials
};

/// Status of one rank, sent about once per second between two steps. Counts start with its worker.
struct RankStatusRecord {
  std::int64_t rank = 0;
  std::int64_t step = 0;               ///< last completed step
  std::int64_t steps = 0;              ///< completed steps
  double step_seconds = 0;             ///< mean over the steps since the previous status
  base::TimeLedger time;               ///< total of all its steps
  std::int64_t memory_used_bytes = 0;  ///< maximum that its step has used of the planned memory
  std::int64_t memory_planned_bytes = 0;
  std::int64_t resident_bytes = 0;        ///< host memory of its process; 0: not known
  std::optional<ObjectReads> reads = {};  ///< reads of its data; none: the data is local
};

/// Reading of one rank's GPU at one moment.
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
  std::int64_t waiting = 0;   ///< lines not written yet
  std::int64_t dropped = 0;   ///< lines that will never be written
  std::string error;          ///< why lines wait; empty: the last write succeeded

  bool operator==(const OutletRecord&) const = default;
};

/// Agents of a job with several nodes.
struct NodesRecord {
  std::int64_t spares = 0;  ///< spare agents that wait to replace a lost node
  std::int64_t lost = 0;    ///< lost nodes since this process began
};

/// Counters of the rendezvous of several nodes.
struct RendezvousRecord {
  std::int64_t refused = 0;  ///< connections from processes that do not belong to the job
};

/// The earlier attempts of a run, as recorded in its logs.
struct EarlierRun {
  std::int64_t attempts = 0;  ///< starts, resumes and restarts
  double began = 0;           ///< time of the first one, Unix seconds; 0: not known
  /// Attempts that ended without a request: killed or failed.
  std::int64_t interruptions = 0;
  double useful_seconds = 0;  ///< total time of the steps that still count, without checkpoints
  bool ended = false;         ///< the last one recorded its end: finished, stopped or failed
  WallLedger wall = {};       ///< split of their wall time
};

/// Adds a notice that begins or ends a process or its workers.
void add_to(WallLedger& ledger, const NoticeRecord& notice);

/// Facts that are known before the first step.
struct RunInfo {
  std::string name;
  std::int64_t node = 0;  ///< of the process that records it
  std::string output;
  std::string device;
  int threads = 0;
  std::int64_t parameters = 0;
  std::int64_t steps = 0;
  std::int64_t start_step = 0;    ///< steps done before, in the checkpoint that the run resumes from
  std::int64_t start_tokens = 0;  ///< trained by then
  std::int64_t tokens_per_step = 0;
  /// The first steps, where they have other numbers of tokens: how many, and the tokens of each.
  std::vector<std::pair<std::int64_t, std::int64_t>> ramp = {};
  double flops_per_token = 0;
  std::optional<double> peak_flops;  ///< of the device at the compute precision, dense
  std::string precision;
  std::int64_t memory_planned_bytes = 0;
  std::vector<std::pair<std::string, std::int64_t>> memory_regions;
  std::vector<std::pair<std::string, std::int64_t>> memory_uses =
      {};  ///< the same bytes by use: parameters, gradients, ...
  std::string version;
  std::string commit = {};
  std::string command = {};  ///< the command line
  std::string host = {};
  std::string layout = {};       ///< "tp1 pp1 dp2 on 2 CPU ranks"
  std::string data = {};         ///< files and format
  std::string adapters = {};     ///< what is trained instead of the parameters; empty: the parameters
  std::int64_t data_tokens = 0;  ///< per epoch; 0: not known
  std::optional<EarlierRun> earlier = {};  ///< the first node's, from its logs
  bool durable = false;                    ///< its checkpoints are copied to a durable tier
  bool peak_measured = false;  ///< `peak_flops` is this machine's fastest GEMM, not the vendor's figure

  /// Tokens of the steps up to `step`, from 1.
  std::int64_t tokens_through(std::int64_t step) const;
  /// Tokens of the whole run: those that it began with, and those of its own steps.
  std::int64_t total_tokens() const {
    return start_tokens + tokens_through(steps) - tokens_through(start_step);
  }
  /// What the time of the steps after `from` up to `to` goes by: tokens where batches differ, else steps.
  double work(std::int64_t from, std::int64_t to) const {
    return static_cast<double>(ramp.empty() ? to - from : tokens_through(to) - tokens_through(from));
  }
};

/// How a run ended.
struct RunSummary {
  std::int64_t step = 0;
  double wall_seconds = 0;
  std::string outcome;  ///< "done", "stopped by SIGTERM", or the error's first line
};

// samples.jsonl: one JSON object per line, one line per step, with the names above; `sources` only for a
// blend. Parsing throws DataError for an invalid line.
std::string to_json_line(const SamplesRecord& record);
SamplesRecord parse_samples_record(const std::string& text);

// steps.jsonl: one JSON object per line, one line per step, with the names above and `time` as an object.
std::string to_json_line(const StepRecord& record);
/// Throws DataError on text that is not such a line.
StepRecord parse_step_record(const std::string& line);

// events.jsonl: one JSON object per line, with `event` ("evaluation", "checkpoint" or a notice's kind) and
// the names above.
std::string to_json_line(const EventRecord& record);
/// Throws DataError on text that is not such a line.
EventRecord parse_event_record(const std::string& line);

}  // namespace trainerd::io
