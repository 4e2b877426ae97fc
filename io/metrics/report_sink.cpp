#include <numeric>

#include "io/lines/step_log.h"
#include "io/metrics/event_log.h"
#include "io/metrics/report/page.h"
#include "io/metrics/report/page_writer.h"
#include "io/metrics/sinks.h"
#include "io/text/text.h"
#include "kernels/base/clock.h"

namespace trainerd::io {
namespace {

// Interval between two pages of a running run.
constexpr double kPageSeconds = 60;

double steps_seconds(const StepSeries& series) {
  double total = 0;
  for (const StepBucket& bucket : series.buckets())
    total += std::accumulate(bucket.time.begin(), bucket.time.end(), 0.0);
  return total;
}

}  // namespace

struct ReportSink::State {
  std::string steps_path, events_path;
  double last_tries;
  PageWriter writer;
  Report report;
  std::int64_t own_steps = 0;
  double next_page = 0;              // monotonic clock
  std::vector<double> speeds, mfus;  // of all steps

  State(const std::string& path, double tries) : last_tries(tries), writer(path) {}

  std::int64_t last_step = 0;  // last step in the series

  void add(const StepRecord& record) {
    report.tokens = record.tokens;
    if (record.step <= last_step) return;  // repeated after a restart: its values are already in the series
    last_step = record.step;
    report.series.add(record);
    report.final_loss = record.loss;
    speeds.push_back(record.tokens_per_second);
    if (record.mfu) mfus.push_back(*record.mfu);
  }

  std::string page() {
    report.now = base::wall_seconds();
    report.attempts = attempts_of(report.notices);
    report.total_seconds = total_seconds(report.attempts, report.now);
    if (report.attempts.empty())
      report.total_seconds = own_steps == 0 ? steps_seconds(report.series) : report.summary.wall_seconds;
    report.median_tokens_per_second = median(speeds);
    report.median_mfu = median(mfus);
    return render(report);
  }
};

ReportSink::ReportSink(std::string path, std::string steps_path, std::string events_path,
                       std::string job_yaml, double last_tries)
    : state_(std::make_unique<State>(path, last_tries)) {
  state_->steps_path = std::move(steps_path);
  state_->events_path = std::move(events_path);
  state_->report.job_yaml = std::move(job_yaml);
  state_->report.summary.outcome = kRunning;
}

ReportSink::~ReportSink() = default;

void ReportSink::on_start(const RunInfo& info) {
  State& s = *state_;
  s.report.info = info;
  if (info.earlier) s.report.wall = info.earlier->wall;
  s.report.summary.step = info.start_step;
  s.report.tokens = info.start_tokens;
  read_step_log(s.steps_path, info.start_step, [&s](const StepRecord& record) { s.add(record); });
  read_event_log(s.events_path, info.start_step, [&s](const EventRecord& event) {
    if (const auto* evaluation = std::get_if<EvaluationRecord>(&event))
      s.report.evaluations.push_back(*evaluation);
    if (const auto* checkpoint = std::get_if<CheckpointRecord>(&event))
      s.report.checkpoints.push_back(*checkpoint);
    if (const auto* notice = std::get_if<NoticeRecord>(&event)) s.report.notices.push_back(*notice);
  });
}

void ReportSink::on_step(const StepRecord& record) {
  State& s = *state_;
  ++s.own_steps;
  s.report.wall.step(record.step, record.wall_time, record.step_seconds,
                     record.time[base::LedgerPart::checkpoint]);
  s.add(record);
  s.report.summary.step = record.step;
  const double now = base::monotonic_seconds();
  if (now < s.next_page) return;
  s.next_page = now + kPageSeconds;
  s.writer.write(s.page());
}

void ReportSink::on_notice(const NoticeRecord& record) {
  add_to(state_->report.wall, record);
  state_->report.notices.push_back(record);
}

std::vector<OutletRecord> ReportSink::outlets() const { return {state_->writer.record()}; }

void ReportSink::on_evaluation(const EvaluationRecord& record) {
  state_->report.wall.evaluation(record.wall_time, record.seconds);
  state_->report.evaluations.push_back(record);
}
void ReportSink::on_checkpoint(const CheckpointRecord& record) {
  state_->report.wall.keep(record.step);
  state_->report.checkpoints.push_back(record);
}

void ReportSink::on_prediction(const PredictionRecord& record) { state_->report.prediction = record; }

void ReportSink::on_restart(const RestartRecord& record) {
  Report& report = state_->report;
  std::erase_if(report.evaluations, [&](const EvaluationRecord& e) { return e.step > record.step; });
  report.summary.step = record.step;
  report.tokens = record.tokens;
}

void ReportSink::on_finish(const RunSummary& summary) {
  State& s = *state_;
  s.report.summary = summary;
  s.writer.write_last(s.page(), s.last_tries);
}

}  // namespace trainerd::io
