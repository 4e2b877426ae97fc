#include "io/metrics/run_metrics.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "io/metrics/age_gauge.h"
#include "io/metrics/cpu_energy.h"
#include "io/metrics/device_metrics.h"
#include "io/metrics/disk_gauge.h"
#include "io/metrics/evaluation_gauges.h"
#include "io/metrics/families.h"
#include "io/metrics/goodput_gauge.h"
#include "io/metrics/objective_gauges.h"
#include "io/metrics/rank_metrics.h"
#include "io/metrics/supervision_metrics.h"
#include "io/metrics/wall_gauges.h"
#include "kernels/base/clock.h"

namespace trainerd::io {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;

// Seconds: from a toy model's step to a large job's. Checkpoints take longer.
Histogram::BucketBoundaries step_buckets() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120};
}
Histogram::BucketBoundaries checkpoint_buckets() {
  return {0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600};
}

// Seconds between two readings of the CPUs' energy counters when nothing scrapes them.
constexpr double kEnergySeconds = 5;

/// Time of a step without checkpoints.
double useful_seconds(const StepRecord& record) {
  return record.step_seconds - record.time[base::LedgerPart::checkpoint];
}

}  // namespace

struct RunMetrics::State {
  explicit State(const std::string& powercap) : cpu_energy(std::make_shared<CpuEnergy>(powercap)) {}

  std::shared_ptr<Registry> registry = std::make_shared<Registry>();
  Registry& r = *registry;
  Family<Gauge>& build_info = gauge(r, "trainerd_build_info", "Always 1; the labels say what runs.");
  Family<Gauge>& run_info =
      gauge(r, "trainerd_run_info", "Always 1; the labels say which run, attempt and node this is.");
  Gauge* run_info_now = nullptr;
  std::string run_name;
  std::int64_t node = 0;
  Family<Gauge>& memory =
      gauge(r, "trainerd_memory_planned_bytes", "Bytes of each memory region, as planned before step 1.");
  Family<Gauge>& plan_error = gauge(r, "trainerd_plan_error_ratio",
                                    "What was measured against the plan, by term: over the plan, less 1; "
                                    "parts of the ledger as their difference over the planned step.");
  Family<Gauge>& planned_seconds =
      gauge(r, "trainerd_plan_seconds", "Planned seconds per step and per part of its ledger.");
  Single<Gauge> planned_bytes{gauge(r, "trainerd_plan_memory_bytes", "Planned memory of this node's ranks.")};
  Single<Gauge> step{gauge(r, "trainerd_step", "Optimizer steps done.")};
  Single<Gauge> job_steps{gauge(r, "trainerd_job_steps", "Optimizer steps of the whole job.")};
  Single<Gauge> loss{
      gauge(r, "trainerd_loss", "Training loss of the latest step: mean over its tokens, natural log.")};
  EvaluationGauges evaluations{r};
  Single<Gauge> grad_norm{
      gauge(r, "trainerd_grad_norm", "Global gradient norm of the latest step, before clipping.")};
  ObjectiveGauges objective{r};
  Single<Gauge> learning_rate{gauge(r, "trainerd_learning_rate", "Learning rate of the latest step.")};
  Single<Gauge> tokens_per_second{
      gauge(r, "trainerd_tokens_per_second", "Tokens trained on per second in the latest step.")};
  Single<Gauge> mfu{
      gauge(r, "trainerd_mfu_ratio",
            "Model FLOPs over the device's dense peak in the latest step; absent when the peak is unknown.")};
  Single<Counter> tokens{counter(r, "trainerd_tokens_total", "Tokens trained on by this process.")};
  Single<Gauge> run_tokens{
      gauge(r, "trainerd_run_tokens", "Tokens trained on by the run, in all its attempts.")};
  Single<Counter> flops{
      counter(r, "trainerd_flops_total", "Model FLOPs done by this process; recomputation does not count.")};
  Single<Gauge> run_flops{gauge(r, "trainerd_run_flops",
                                "Model FLOPs of the tokens trained on by the run, in all its attempts.")};
  Single<Gauge> attempt{gauge(
      r, "trainerd_attempt", "Attempts of the run: starts, resumes and restarts, the present one included.")};
  Single<Counter> lost_seconds{
      counter(r, "trainerd_lost_seconds_total",
              "Seconds of steps that this process did and that a restart of the workers made void.")};
  std::shared_ptr<GoodputGauge> goodput =
      std::make_shared<GoodputGauge>("trainerd_goodput_ratio",
                                     "Seconds of the steps that count, without checkpoints, over the wall "
                                     "time since the run's first start.");
  RankMetrics ranks{r};
  std::shared_ptr<CpuEnergy> cpu_energy;
  Single<Counter> widened{counter(r, "trainerd_widened_gemms_total",
                                  "Matrix products asked for in bf16 or fp16 and computed in fp32.")};
  Single<Counter> reference_gemms{
      counter(r, "trainerd_reference_gemms_total",
              "Matrix products that oneDNN computed by its slow reference implementation.")};
  Single<Counter> own_attention{
      counter(r, "trainerd_own_attention_total",
              "Attention calls on a GPU by our own slow kernels, for want of a library's.")};
  Single<Counter> missed_choices{counter(r, "trainerd_missed_gemm_choices_total",
                                         "Matrix products on a GPU that no timed choice applied to.")};
  Single<Counter> checkpoints{
      counter(r, "trainerd_checkpoints_total", "Checkpoints completed by this process.")};
  Single<Counter> restarts{counter(r, "trainerd_restarts_total",
                                   "Times that this process started the workers again after one had died.")};
  SupervisionMetrics supervision{r};
  Family<Counter>& checkpoint_failures =
      counter(r, "trainerd_checkpoint_failures_total",
              "Tries of this process to write a checkpoint, or to remove old ones, that failed.");
  std::shared_ptr<AgeGauge> checkpoint_age = std::make_shared<AgeGauge>(
      "trainerd_checkpoint_age_seconds",
      "Seconds since the last complete checkpoint; since training began where this process has none yet.");
  Single<Counter> durable{counter(r, "trainerd_durable_checkpoints_total",
                                  "Checkpoints that this process completed in the durable tier.")};
  Single<Counter> durable_failures{
      counter(r, "trainerd_durable_checkpoint_failures_total",
              "Tries to copy a checkpoint to the durable tier that failed; they are made again.")};
  Single<Counter> durable_bytes{
      counter(r, "trainerd_durable_checkpoint_sent_bytes_total", "Bytes sent to the durable tier.")};
  std::shared_ptr<AgeGauge> durable_age = std::make_shared<AgeGauge>(
      "trainerd_durable_checkpoint_age_seconds",
      "Seconds since a checkpoint was completed in the durable tier; since training began where this process "
      "has completed none there yet.");
  std::shared_ptr<AgeGauge> snapshot_age = std::make_shared<AgeGauge>(
      "trainerd_snapshot_age_seconds",
      "Seconds since the newest snapshot that this node holds in memory; absent before the first.");
  Single<Counter> snapshots{counter(r, "trainerd_snapshots_total",
                                    "Snapshots that the node's ranks left in memory, those of checkpoints "
                                    "included.")};
  Single<Counter> snapshot_seconds{
      counter(r, "trainerd_snapshot_seconds_total", "Seconds of checkpoint stall that they cost.")};
  Family<Counter>& restores =
      counter(r, "trainerd_restores_total", "Restarts of the workers by what their state came from.");
  std::shared_ptr<AgeGauge> partner_age = std::make_shared<AgeGauge>(
      "trainerd_partner_copy_age_seconds",
      "Seconds since the partner got this node's newest snapshot whole; absent before the first.");
  Family<Counter>& partner_copies = counter(r, "trainerd_partner_copies_total",
                                            "Snapshots sent to this node's partner, by what became of them.");
  Family<Counter>& partner_bytes =
      counter(r, "trainerd_partner_sent_bytes_total", "Bytes of the snapshots that this node's partner got.");
  std::shared_ptr<DiskGauge> disk_free = std::make_shared<DiskGauge>(
      "trainerd_output_disk_free_bytes",
      "Bytes that this user may still write on the output directory's file system.");
  Family<Gauge>& checkpoint_interval =
      gauge(r, "trainerd_checkpoint_interval_seconds",
            "With checkpoint.every: auto, seconds between checkpoints as the run has worked them out.");
  Family<Gauge>& mtbf = gauge(
      r, "trainerd_mtbf_seconds",
      "With checkpoint.every: auto, the mean time between failures that it reckons with, by its source: "
      "given, cluster or history.");
  Single<Gauge> checkpoint_bytes{gauge(r, "trainerd_checkpoint_bytes", "Size of the latest checkpoint.")};
  Family<Counter>& time =
      counter(r, "trainerd_time_seconds_total", "Wall time of the steps by what it was spent on.");
  Family<Histogram>& checkpoint_seconds =
      histogram(r, "trainerd_checkpoint_seconds",
                "Duration of a checkpoint: part snapshot holds training up, part write does not.");
  DeviceMetrics devices{r};
  Family<Counter>& failed_writes =
      counter(r, "trainerd_output_failed_writes_total",
              "Writes to a file of the run's records that failed; they are tried again.");
  Family<Gauge>& waiting_lines =
      gauge(r, "trainerd_output_waiting_lines", "Lines that wait for a file that cannot be written.");
  Family<Counter>& dropped_lines = counter(
      r, "trainerd_output_dropped_lines_total",
      "Lines lost: of a file that could not be written for too long, or of a console that nobody reads.");
  Single<Counter> refused_connections{
      counter(r, "trainerd_rendezvous_refused_total",
              "Connections to the rendezvous that were refused: none of the job's processes made them.")};
  WallGauges wall{gauge(r, "trainerd_wall_seconds",
                        "Wall time since the run's first start, in all its attempts, by what it went into.")};
  Histogram& step_seconds =
      histogram(r, "trainerd_step_seconds", "Wall time of an optimizer step.").Add({}, step_buckets());
  double began = base::wall_seconds();  // start of this process
  double tokens_before = 0;             // of the run, up to the previous step
  double flops_per_token = 0;
  std::optional<std::int64_t> attempts;

  /// The label `attempt` is absent if the logs of earlier attempts are not known.
  void set_run_info() {
    if (run_info_now != nullptr) run_info.Remove(run_info_now);
    prometheus::Labels labels{{"run", run_name}, {"node", std::to_string(node)}};
    if (attempts) labels["attempt"] = std::to_string(*attempts);
    run_info_now = &run_info.Add(labels);
    run_info_now->Set(1);
  }
  std::deque<std::pair<std::int64_t, double>> useful;  // per step that may be repeated
  // Totals of the workers before a restart, because each worker counts from its own start.
  double widened_before = 0, reference_gemms_before = 0, own_attention_before = 0, missed_choices_before = 0;
};

RunMetrics::RunMetrics(const std::string& powercap) : state_(std::make_unique<State>(powercap)) {}
RunMetrics::~RunMetrics() = default;

std::vector<std::shared_ptr<prometheus::Collectable>> RunMetrics::collectables() const {
  const State& s = *state_;
  return {s.registry,    s.checkpoint_age, s.durable_age, s.snapshot_age,
          s.partner_age, s.disk_free,      s.goodput,     s.cpu_energy};
}

void RunMetrics::on_start(const RunInfo& info) {
  State& s = *state_;
  s.build_info.Add({{"version", info.version}, {"device", info.device}, {"precision", info.precision}})
      .Set(1);
  for (const auto& [region, bytes] : info.memory_regions)
    s.memory.Add({{"region", region}}).Set(static_cast<double>(bytes));
  s.step.get().Set(static_cast<double>(info.start_step));
  s.job_steps.get().Set(static_cast<double>(info.steps));
  // Counters exist from the start, so that a rate over them begins at zero.
  s.tokens.get();
  s.tokens_before = static_cast<double>(info.start_tokens);
  s.run_tokens.get().Set(s.tokens_before);
  s.flops.get();
  s.flops_per_token = info.flops_per_token;
  s.run_flops.get().Set(s.flops_per_token * s.tokens_before);
  if (info.earlier) {
    s.attempts = info.earlier->attempts + 1;
    s.attempt.get().Set(static_cast<double>(*s.attempts));
    s.wall.begin(info.earlier->wall);
    s.goodput->begin(info.earlier->began > 0 ? info.earlier->began : s.began, info.earlier->useful_seconds);
  }
  s.run_name = info.name;
  s.node = info.node;
  s.set_run_info();
  s.lost_seconds.get();
  s.checkpoints.get();
  s.restarts.get();
  s.supervision.begin();
  s.devices.begin();
  s.snapshots.get();
  s.snapshot_seconds.get();
  for (const char* tier : {"memory", "partner", "disk", "start"}) s.restores.Add({{"tier", tier}});
  for (const char* part : {"write", "clean_up"}) s.checkpoint_failures.Add({{"part", part}});
  s.checkpoint_age->set();
  if (info.durable) {
    s.durable.get();
    s.durable_failures.get();
    s.durable_bytes.get();
    s.durable_age->set();
  }
  s.disk_free->watch(info.output);
  s.widened.get();
  for (const base::LedgerPartInfo& part : base::kLedgerParts) s.time.Add(labels_of(part));
}

void RunMetrics::on_step(const StepRecord& record) {
  State& s = *state_;
  s.step.get().Set(static_cast<double>(record.step));
  s.loss.get().Set(record.loss);
  // That of an overflow is not finite, which alerts take for divergence.
  if (!record.overflow) s.grad_norm.get().Set(record.grad_norm);
  s.objective.show(record);
  s.learning_rate.get().Set(record.learning_rate);
  s.tokens_per_second.get().Set(record.tokens_per_second);
  if (record.mfu) s.mfu.get().Set(*record.mfu);
  else s.mfu.remove();
  const auto tokens = static_cast<double>(record.tokens);
  s.run_tokens.get().Set(tokens);
  s.run_flops.get().Set(s.flops_per_token * tokens);
  const double more = std::max(0.0, tokens - std::exchange(s.tokens_before, tokens));
  s.tokens.get().Increment(more);
  s.flops.get().Increment(s.flops_per_token * more);
  s.useful.emplace_back(record.step, useful_seconds(record));
  s.goodput->add(s.useful.back().second);
  s.wall.on_step(record);
  s.cpu_energy->read_within(kEnergySeconds);
  raise_to(s.widened.get(), s.widened_before + static_cast<double>(record.widened_gemms));
  raise_to(s.reference_gemms.get(), s.reference_gemms_before + static_cast<double>(record.reference_gemms));
  raise_to(s.own_attention.get(), s.own_attention_before + static_cast<double>(record.own_attention));
  raise_to(s.missed_choices.get(), s.missed_choices_before + static_cast<double>(record.missed_gemm_choices));
  s.step_seconds.Observe(record.step_seconds);
  for (const base::LedgerPartInfo& part : base::kLedgerParts)
    s.time.Add(labels_of(part)).Increment(std::max(0.0, record.time[part.part]));
}

void RunMetrics::on_evaluation(const EvaluationRecord& record) {
  State& s = *state_;
  s.wall.on_evaluation(record);
  s.evaluations.show(record);
}

void RunMetrics::on_checkpoint(const CheckpointRecord& record) {
  State& s = *state_;
  s.checkpoints.get().Increment();
  s.checkpoint_age->set();
  forget_to(s.useful, record.step);
  s.wall.on_checkpoint(record);
  s.checkpoint_bytes.get().Set(static_cast<double>(record.bytes));
  s.checkpoint_seconds.Add({{"part", "snapshot"}}, checkpoint_buckets()).Observe(record.snapshot_seconds);
  s.checkpoint_seconds.Add({{"part", "write"}}, checkpoint_buckets()).Observe(record.write_seconds);
}

void RunMetrics::on_cadence(const CadenceRecord& record) {
  state_->checkpoint_interval.Add({}).Set(record.interval_seconds);
  state_->mtbf.Add({{"source", name_of(record.source)}}).Set(record.mtbf_seconds);
}

void RunMetrics::on_snapshot(const SnapshotRecord& record) {
  state_->snapshot_age->set();
  state_->snapshots.get().Increment();
  state_->snapshot_seconds.get().Increment(record.seconds);
}

void RunMetrics::on_partner_copy(const PartnerCopyRecord& record) {
  State& s = *state_;
  for (const char* result : {"kept", "failed"})
    s.partner_copies.Add({{"result", result}})
        .Increment(result == (record.kept ? std::string("kept") : "failed"));
  s.partner_bytes.Add({}).Increment(record.kept ? static_cast<double>(record.bytes) : 0);
  if (record.kept) s.partner_age->set();
}

void RunMetrics::on_checkpoint_failure(const CheckpointFailureRecord& record) {
  const char* part = record.what == CheckpointFailureRecord::What::write ? "write" : "clean_up";
  state_->checkpoint_failures.Add({{"part", part}}).Increment();
}

void RunMetrics::on_durable(const DurableRecord& record) {
  State& s = *state_;
  if (record.failed) return s.durable_failures.get().Increment();
  s.durable.get().Increment();
  s.durable_bytes.get().Increment(static_cast<double>(record.bytes));
  s.durable_age->set();
}

void RunMetrics::on_rank_status(const RankStatusRecord& record) {
  state_->ranks.on_status(record);
  state_->cpu_energy->read_within(kEnergySeconds);
}

void RunMetrics::on_device(const DeviceRecord& record) { state_->devices.on_reading(record); }
void RunMetrics::on_device_finding(const DeviceFindingRecord& record) { state_->devices.on_finding(record); }

void RunMetrics::on_outlet(const OutletRecord& record) {
  const prometheus::Labels labels{{"output", record.name}};
  raise_to(state_->failed_writes.Add(labels), static_cast<double>(record.failures));
  state_->waiting_lines.Add(labels).Set(static_cast<double>(record.waiting));
  raise_to(state_->dropped_lines.Add(labels), static_cast<double>(record.dropped));
}

void RunMetrics::on_rendezvous(const RendezvousRecord& record) {
  raise_to(state_->refused_connections.get(), static_cast<double>(record.refused));
}

void RunMetrics::on_nodes(const NodesRecord& record) { state_->supervision.on_nodes(record); }

void RunMetrics::on_prediction(const PredictionRecord& record) {
  for (const PredictionTerm& term : record.terms) {
    if (term.kind == PredictionTerm::Kind::memory_bytes) state_->planned_bytes.get().Set(term.predicted);
    else state_->planned_seconds.Add({{"term", term.name}}).Set(term.predicted);
    state_->plan_error.Add({{"term", term.name}}).Set(term.error);
  }
}

void RunMetrics::on_notice(const NoticeRecord& record) {
  state_->wall.on_notice(record);
  if (record.recovery) state_->supervision.on_recovery(*record.recovery);
}

void RunMetrics::on_corruption(const CorruptionRecord& record) { state_->supervision.on_corruption(record); }
void RunMetrics::on_spike(const SpikeRecord& record) { state_->supervision.on_spike(record); }

void RunMetrics::on_restart(const RestartRecord& record) {
  State& s = *state_;
  s.restarts.get().Increment();
  s.restores.Add({{"tier", name_of(record.tier)}}).Increment();
  s.step.get().Set(static_cast<double>(record.step));
  s.tokens_before = static_cast<double>(record.tokens);
  s.run_tokens.get().Set(s.tokens_before);
  s.widened_before = s.widened.get().Value();
  s.reference_gemms_before = s.reference_gemms.get().Value();
  s.own_attention_before = s.own_attention.get().Value();
  s.missed_choices_before = s.missed_choices.get().Value();
  s.run_flops.get().Set(s.flops_per_token * s.tokens_before);
  if (s.attempts) s.attempt.get().Set(static_cast<double>(++*s.attempts));
  s.set_run_info();
  for (; !s.useful.empty() && s.useful.back().first > record.step; s.useful.pop_back()) {
    s.goodput->add(-s.useful.back().second);
    s.lost_seconds.get().Increment(std::max(0.0, s.useful.back().second));
  }
  s.supervision.on_restart();
  s.ranks.on_restart();
}

void RunMetrics::on_hang(const HangRecord& record) { state_->supervision.on_hang(record); }
void RunMetrics::on_preflight(const PreflightRecord& record) { state_->supervision.on_preflight(record); }
void RunMetrics::on_link(const LinkRecord& record) { state_->supervision.on_link(record); }
void RunMetrics::on_straggler(const StragglerRecord& record) { state_->supervision.on_straggler(record); }

// The sink stays alive, so a last scrape after the last step still gets all values.
void RunMetrics::on_finish(const RunSummary& summary) {
  state_->step.get().Set(static_cast<double>(summary.step));
}

}  // namespace trainerd::io
