#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/console/run_log.h"
#include "io/console/screen.h"
#include "io/http/server.h"
#include "io/metrics/options.h"
#include "io/metrics/run_metrics.h"
#include "io/metrics/sink.h"

namespace trainerd::io {

/// Time that the end of a run waits for a log that cannot be written, in seconds.
inline constexpr double kLastTries = 5.0;

/// Serves /metrics in Prometheus' text format.
class PrometheusSink final : public RunMetrics {
 public:
  /// If the port of `listen` is taken, the next free one is used. `listen` must not be "off". Throws
  /// SpecError naming an address that is invalid or not this machine's.
  explicit PrometheusSink(const MetricsOptions& options);
  ~PrometheusSink() override;
  /// The bound address: "127.0.0.1:40123".
  std::string address() const;
  /// Serves the same metrics at another path, such as "/a/metrics".
  void also_at(const std::string& path);
  /// The server, for additional pages. It ends with the sink.
  HttpServer& server();
  /// True if the requested port is taken and another one was bound.
  bool moved() const;

 private:
  std::unique_ptr<HttpServer> server_;
};

/// Sends the same metrics to `otlp.endpoint`, every `otlp.every_seconds` and once more at the end. A receiver
/// that is down counts as an outlet that cannot be written. Only the end of the run waits for it, for some
/// seconds.
class OtlpSink final : public RunMetrics {
 public:
  struct Sender {
    std::string run;
    std::int64_t node = 0;
    std::string host;
    std::string instance;  ///< identifies this process among all senders
    std::string version;
  };
  /// Throws SpecError for an invalid endpoint.
  OtlpSink(const MetricsOptions& options, const Sender& sender);
  ~OtlpSink() override;
  /// The URL that receives the metrics.
  std::string url() const;
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::unique_ptr<HttpServer> server_;
};

/// Shows the run in a browser: the page "/", its style and script, and /status.json, which `trainerd top`
/// reads too. Its memory does not grow with the run.
class LiveSink final : public MetricsSink {
 public:
  /// The pages stay on the server until the server ends.
  explicit LiveSink(HttpServer& server);
  /// Shows what is known while the ranks start.
  void before_start(const RunInfo& info);
  void on_start(const RunInfo&) override;
  void on_step(const StepRecord&) override;
  void on_evaluation(const EvaluationRecord&) override;
  void on_evaluation_progress(const EvaluationProgress&) override;
  void on_checkpoint(const CheckpointRecord&) override;
  void on_notice(const NoticeRecord&) override;
  void on_prediction(const PredictionRecord&) override;
  void on_rank_state(const RankStateRecord&) override;
  void on_rank_memory(const RankMemoryRecord&) override;
  void on_rank_doing(const RankDoingRecord&) override;
  void on_restart(const RestartRecord&) override;
  void on_finish(const RunSummary&) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Writes run.json for programs that read the output directory: the facts known before the first step, and
/// the plan's prediction. A slow or full disk delays nothing.
class RunFactsSink final : public MetricsSink {
 public:
  explicit RunFactsSink(const std::string& path);
  ~RunFactsSink() override;
  void on_start(const RunInfo&) override;
  void on_step(const StepRecord&) override;
  void on_prediction(const PredictionRecord&) override;
  /// Throws SpecError if the file cannot be written.
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Appends to steps.jsonl. When a run resumes, opening it first drops the lines after `start_step` (these
/// steps will be repeated) and a torn last line. Invalid lines are moved to another file. A file that cannot
/// be read is left unchanged and gives a SpecError.
class JsonlSink final : public MetricsSink {
 public:
  JsonlSink(std::string path, std::int64_t start_step, double last_tries = kLastTries);
  ~JsonlSink() override;
  /// What was wrong with the existing file; empty if nothing was.
  const std::string& warning() const;
  void on_step(const StepRecord&) override;
  /// Drops the lines of this process after the record's step.
  void on_restart(const RestartRecord&) override;
  /// Throws SpecError if lines were lost.
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Appends to samples.jsonl which samples each step used and in which attempt. Opens the file as JsonlSink
/// does.
class SamplesSink final : public MetricsSink {
 public:
  /// `attempt` counts the starts, resumes and restarts of the run, including this one.
  SamplesSink(const std::string& path, std::int64_t start_step, std::int64_t attempt,
              double last_tries = kLastTries);
  ~SamplesSink() override;
  const std::string& warning() const;
  void on_step(const StepRecord&) override;
  void on_restart(const RestartRecord&) override;
  /// Throws SpecError if lines were lost.
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Appends evaluations, checkpoints and notices to events.jsonl. When a run resumes, opening it first drops
/// the evaluations and checkpoints after `start_step` and a torn last line. Notices are kept, because they
/// record what happened. Invalid lines are treated as above.
class EventLogSink final : public MetricsSink {
 public:
  EventLogSink(std::string path, std::int64_t start_step, double last_tries = kLastTries);
  ~EventLogSink() override;
  const std::string& warning() const;
  void on_step(const StepRecord&) override {}
  void on_evaluation(const EvaluationRecord&) override;
  void on_checkpoint(const CheckpointRecord&) override;
  void on_notice(const NoticeRecord&) override;
  void on_restart(const RestartRecord&) override;
  /// Throws SpecError if lines were lost.
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Progress for a human reader: a start banner, on a terminal a bar with ETA, loss, tokens/s and MFU,
/// elsewhere a few plain lines per minute, and a closing summary.
class ConsoleSink final : public MetricsSink {
 public:
  /// `log` gets the same lines, and a progress line per minute. Both must outlive this.
  ConsoleSink(Screen& screen, RunLog& log);
  ~ConsoleSink() override;
  void on_start(const RunInfo&) override;
  void on_step(const StepRecord&) override;
  void on_evaluation(const EvaluationRecord&) override;
  void on_evaluation_progress(const EvaluationProgress&) override;
  void on_checkpoint(const CheckpointRecord&) override;
  void on_restart(const RestartRecord&) override;
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Collects the run and writes report.html after the first step, every minute and at the end. It shows loss,
/// learning rate, gradient norm, tokens/s, MFU and the time ledger as inline SVG, what ran and where, and the
/// history of all attempts. It loads nothing from outside. Steps of earlier processes up to `start_step` are
/// read from the logs; without own steps only these are shown.
class ReportSink final : public MetricsSink {
 public:
  /// `job_yaml` is shown in the report. `steps_path` and `events_path` are the logs of the same run.
  ReportSink(std::string path, std::string steps_path, std::string events_path, std::string job_yaml,
             double last_tries = kLastTries);
  ~ReportSink() override;
  void on_start(const RunInfo&) override;
  void on_step(const StepRecord&) override;
  void on_evaluation(const EvaluationRecord&) override;
  void on_checkpoint(const CheckpointRecord&) override;
  void on_notice(const NoticeRecord&) override;
  void on_prediction(const PredictionRecord&) override;
  void on_restart(const RestartRecord&) override;
  /// Throws SpecError if it cannot be written within `last_tries` seconds.
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
