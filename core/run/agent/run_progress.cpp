#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "core/run/worker/evaluation.h"
#include "core/run/worker/report_record.h"
#include "core/train/snapshot.h"
#include "io/text/text.h"
#include "kernels/base/error.h"

// Part of the run (run.h): records the ranks' training reports.

namespace trainerd::core::run {
namespace {

template <class Record>
Record stamped(Record record) {
  record.wall_time = base::wall_seconds();
  return record;
}

}  // namespace

void Run::on_all_ready(const ReadyRanks& ready) {
  const Ready& first = ready.ranks().begin()->second;
  if (!first.gemm_algorithms.empty()) {
    // Restarted workers use the same algorithms, so that they compute the same results.
    start_.gemm_algorithms = first.gemm_algorithms;
    if (membership_.leads() && !membership_.lead_is_lost())
      output_.write_gemm_algorithms(first.gemm_algorithms);
  }
  surviving_.gathered.reset();
  start_.reference = first.reference;
  if (topology_.device.kind == kernels::DeviceKind::cpu) start_.peak_flops = first.peak_flops;
  ranks_.on_ready(attempt_->plan().layout, first.peak_flops);
  const bool again = std::exchange(sinks_started_, true);
  series_.was_ready = true;
  if (again) send_cadence();
  recovery_is_ready(ready);
  if (!again && topology_.device.kind == kernels::DeviceKind::cpu)
    log::info("{} kernels, {}", first.environment.at("isa"), first.environment.at("gemm_library"));
  ready.require_data(data_text(data_.files(), start_.data_content), data_.evaluated);
  preflight_.require_alike(ready);
  if (!membership_.leads() && sinks_.none()) return;
  if (again) {
    preflight_.judge(ready);
    return;
  }
  if (resumed_) {
    const std::string changed = train::environment_differences(resumed_->environment, first.environment);
    if (!changed.empty()) log::warn("the continuation will not be bit for bit: {}", changed);
  }
  io::RunInfo info = run_info();
  info.device = first.device;
  info.data_tokens = first.data_tokens;
  info.threads = static_cast<int>(ready.threads());
  if (first.peak_flops > 0)
    info.peak_flops = first.peak_flops * static_cast<double>(attempt_->plan().layout.grid.ranks());
  info.peak_measured = topology_.device.kind == kernels::DeviceKind::cpu;
  sinks_.each(&io::MetricsSink::on_start, info);
  send_cadence();
  // After a rollback the sinks are new; their counts must include those of the earlier part.
  for (std::size_t action = 0; action < series_.spikes_used.size(); ++action)
    for (std::int64_t i = 0; i < series_.spikes_used[action]; ++i)
      sinks_.each(&io::MetricsSink::on_spike,
                  io::SpikeRecord{.action = std::string(job::kSpikeWords.at(action))});
  for (const std::vector<std::int64_t>& ranks : series_.corruptions)
    sinks_.each(&io::MetricsSink::on_corruption, io::CorruptionRecord{.ranks = ranks});
  record_begin();
  for (const io::NoticeRecord& change : std::exchange(changes_, {}))
    if (change.kind == io::NoticeKind::restart) sinks_.each(&io::MetricsSink::on_notice, change);
    else notify(change.kind, change.message, change.details);
  if (!early_choice_.empty()) record(io::NoticeKind::durable, std::exchange(early_choice_, {}));
  preflight_.judge(ready);
  watch_outlets();
}

void Run::on_step(io::StepRecord record) {
  record = stamped(std::move(record));
  if (blend_) record.source_samples = samples_of_sources(record.first_sample, record.samples);
  step_ = record.step;
  last_step_at_ = record.wall_time;
  latest_steps_.emplace_back(record.step, record.step_seconds);
  if (time_limit_) time_limit_->add_step(record.step_seconds * std::max(1.0, job_.growth(record.step + 1)));
  if (cadence_) cadence_->add_step(record.step_seconds);
  if (record.overflow)
    notify(
        io::NoticeKind::overflow,
        fmt::format("step {}: gradients overflowed with the loss scale {:.6g}; nothing was updated, and the "
                    "scale is {:.6g} from here on",
                    record.step, *record.loss_scale,
                    std::max(*record.loss_scale / 2, job_.precision.loss_scale.least)));
  if (!record.skipped) judge_checkpoint(record.step, record.loss);
  if (job_.supervise.spikes.on() || job_.supervise.spikes.score > 0) add_judged(record);
  if (checkpoint_faults_)
    checkpoint_faults_->on_step(record.step, attempt_->plan().here.first, attempt_->plan().here.count);
  sinks_.each(&io::MetricsSink::on_step, record);
  end_recovery(record);
  watch_outlets();
  if (const std::int64_t refused = membership_.refused();
      std::exchange(refused_reported_, refused) != refused)
    sinks_.each(&io::MetricsSink::on_rendezvous, io::RendezvousRecord{refused});
  if (record.reference_gemms > 0 && !std::exchange(slow_gemms_reported_, true))
    notify(io::NoticeKind::warning,
           "oneDNN computes some matrix products by its reference implementation, many times slower than "
           "need be: "
           "see trainerd_reference_gemms_total, and report the model's sizes and this CPU");
  if (const std::string fell_back = attention_warning(record, topology_.device.attention_library);
      !fell_back.empty() && !std::exchange(attention_reported_, true))
    notify(io::NoticeKind::warning, fell_back);
  if (plan_check_) plan_check_->add(record);
  compare_with_plan();
  if (!evaluation_due(job_, record.step)) stop_after(record.step);
  grow_if_possible();
}

/// How many of the `count` samples from cursor `first` on come from each source.
std::vector<std::int64_t> Run::samples_of_sources(std::int64_t first, std::int64_t count) const {
  const std::int64_t position = first - start_.order.start;
  std::vector<std::int64_t> taken = blend_->taken(position + count);
  const std::vector<std::int64_t> before = blend_->taken(position);
  std::transform(taken.begin(), taken.end(), before.begin(), taken.begin(), std::minus<>());
  return taken;
}

void Run::on_evaluation(io::EvaluationRecord record) {
  const std::int64_t step = evaluated_step_ = record.step;
  sinks_.each(&io::MetricsSink::on_evaluation, stamped(std::move(record)));
  stop_after(step);
}

void Run::on_rank_status(const io::RankStatusRecord& record) {
  sinks_.each(&io::MetricsSink::on_rank_status, record);
  ranks_.on_status(*attempt_, record);
  // Nodes other than the first have no other regular occasion for this.
  if (!membership_.leads()) watch_outlets();
}

void Run::on_memory_used(std::int64_t rank, std::int64_t bytes) {
  if (plan_check_) plan_check_->add_memory(rank, bytes);
  compare_with_plan();
}

void Run::compare_with_plan() {
  const auto record = plan_check_ ? plan_check_->take() : std::nullopt;
  if (!record) return;
  if (record->terms.size() > 1)
    log::info("the plan against steps {} to {} (medians):", record->first_step, record->last_step);
  for (const io::PredictionTerm& term : record->terms) {
    const bool bytes = term.kind == io::PredictionTerm::Kind::memory_bytes;
    log::info(
        "{}{} planned, {} measured: {:+.1f}%{}",
        record->terms.size() > 1 ? fmt::format("  {:<15} ", term.name) : "memory of the step: ",
        bytes ? io::short_bytes(static_cast<std::int64_t>(term.predicted))
              : io::short_duration(term.predicted),
        bytes ? io::short_bytes(static_cast<std::int64_t>(term.measured)) : io::short_duration(term.measured),
        100 * term.error, term.kind == io::PredictionTerm::Kind::part_seconds ? " of the step" : "");
  }
  sinks_.each(&io::MetricsSink::on_prediction, *record);
}

}  // namespace trainerd::core::run
