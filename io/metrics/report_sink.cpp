#include <numeric>

#include "io/metrics/event_log.h"
#include "io/metrics/report/page.h"
#include "io/metrics/sinks.h"
#include "io/metrics/step_log.h"
#include "io/text.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

// Under its own name only when whole: a reader never opens half a page.
void write_page(const std::string& path, const std::string& page) {
  if (const int error = base::write_file_atomically(path, std::as_bytes(std::span(page))); error != 0)
    throw base::data_error(path + ": the report cannot be written: " + base::errno_text(error) +
                           "; free some space or set output: to another directory");
}

double total_seconds(const StepSeries& series) {
  double total = 0;
  for (const StepBucket& bucket : series.buckets())
    total += std::accumulate(bucket.time.begin(), bucket.time.end(), 0.0);
  return total;
}

}  // namespace

struct ReportSink::State {
  std::string path, steps_path, events_path;
  Report report;
  std::int64_t own_steps = 0;
  std::vector<double> speeds, mfus;  // of this process's steps; of all earlier ones until it has one

  void add(const StepRecord& record) {
    report.series.add(record);
    report.final_loss = record.loss;
    speeds.push_back(record.tokens_per_second);
    if (record.mfu) mfus.push_back(*record.mfu);
  }
};

ReportSink::ReportSink(std::string path, std::string steps_path, std::string events_path,
                       std::string job_yaml)
    : state_(std::make_unique<State>()) {
  state_->path = std::move(path);
  state_->steps_path = std::move(steps_path);
  state_->events_path = std::move(events_path);
  state_->report.job_yaml = std::move(job_yaml);
}

ReportSink::~ReportSink() = default;

void ReportSink::on_start(const RunInfo& info) {
  State& s = *state_;
  s.report.info = info;
  if (info.start_step == 0) return;
  read_step_log(s.steps_path, info.start_step, [&s](const StepRecord& record) { s.add(record); });
  read_event_log(s.events_path, info.start_step, [&s](const EventRecord& event) {
    if (const auto* evaluation = std::get_if<EvaluationRecord>(&event))
      s.report.evaluations.push_back(*evaluation);
    if (const auto* checkpoint = std::get_if<CheckpointRecord>(&event))
      s.report.checkpoints.push_back(*checkpoint);
  });
}

void ReportSink::on_step(const StepRecord& record) {
  State& s = *state_;
  if (s.own_steps++ == 0) {
    s.speeds.clear();
    s.mfus.clear();
  }
  s.add(record);
}

void ReportSink::on_evaluation(const EvaluationRecord& record) {
  state_->report.evaluations.push_back(record);
}
void ReportSink::on_checkpoint(const CheckpointRecord& record) {
  state_->report.checkpoints.push_back(record);
}

void ReportSink::on_prediction(const PredictionRecord& record) { state_->report.prediction = record; }

void ReportSink::on_finish(const RunSummary& summary) {
  State& s = *state_;
  s.report.summary = summary;
  if (s.own_steps == 0 && !s.report.series.buckets().empty())
    s.report.summary.wall_seconds = total_seconds(s.report.series);
  s.report.median_tokens_per_second = median(s.speeds);
  s.report.median_mfu = median(s.mfus);
  write_page(s.path, render(s.report));
}

}  // namespace trainerd::io
