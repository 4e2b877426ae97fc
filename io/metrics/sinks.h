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

/// Seconds that the end of a run waits for a log that cannot be written.
inline constexpr double kLastTries = 5.0;

/// Serves /metrics in Prometheus' text format.
class PrometheusSink final : public RunMetrics {
 public:
  /// Where the port of `listen` is taken, the next free one is. Throws SpecError for an address that is not
  /// this machine's, or that is none, naming it; `listen` is not "off".
  explicit PrometheusSink(const MetricsOptions& options);
  ~PrometheusSink() override;
  /// "127.0.0.1:40123": what was bound.
  std::string address() const;
  /// Serves the same under another path, such as "/a/metrics".
  void also_at(const std::string& path);
  /// For other pages beside it; it ends with the sink.
  HttpServer& server();
  /// Whether that is another port than the one asked for, which is taken.
  bool moved() const;

 private:
  std::unique_ptr<HttpServer> server_;
};

/// Sends the same to `otlp.endpoint`, every `otlp.every_seconds` and once more at the end. A receiver that is
/// down is an outlet that cannot be written; nothing waits for it but the end of the run, for some seconds.
class OtlpSink final : public RunMetrics {
 public:
  struct Sender {
    std::string run;
    std::int64_t node = 0;
    std::string host;
    std::string instance;  ///< a name of this process among all that send
    std::string version;
  };
  /// Throws SpecError for an endpoint that is none.
  OtlpSink(const MetricsOptions& options, const Sender& sender);
  ~OtlpSink() override;
  /// Where it is sent to.
  std::string url() const;
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::unique_ptr<HttpServer> server_;
};

/// Follows the run for a browser: the page "/", its style and script, and /status.json, which `trainerd top`
/// reads too. Its memory does not grow with the run.
class LiveSink final : public MetricsSink {
 public:
  /// The pages are the server's until it ends.
  explicit LiveSink(HttpServer& server);
  /// What is known while the ranks start.
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

/// Writes run.json: what is known of the run before its first step, and its plan's outcome, for programs that
/// read its directory. A disk that is slow or full delays nothing.
class RunFactsSink final : public MetricsSink {
 public:
  explicit RunFactsSink(const std::string& path);
  ~RunFactsSink() override;
  void on_start(const RunInfo&) override;
  void on_step(const StepRecord&) override;
  void on_prediction(const PredictionRecord&) override;
  /// Throws SpecError when it cannot be written.
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Appends to steps.jsonl. Opening for a resumed run first drops the lines after `start_step` (a run killed
/// between a checkpoint and its end will do those steps again), and a torn last line; lines that are no
/// records are moved to another file. A file that cannot be read is a SpecError, and is not touched.
class JsonlSink final : public MetricsSink {
 public:
  JsonlSink(std::string path, std::int64_t start_step, double last_tries = kLastTries);
  ~JsonlSink() override;
  /// What was wrong with the file that it was opened on; empty: nothing.
  const std::string& warning() const;
  void on_step(const StepRecord&) override;
  /// Drops the lines of this process after the record's step.
  void on_restart(const RestartRecord&) override;
  /// Throws SpecError when lines were lost.
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Appends to samples.jsonl which samples each step took, and in which attempt: as JsonlSink does.
class SamplesSink final : public MetricsSink {
 public:
  /// `attempt` counts the starts, resumes and restarts of the run, this one included.
  SamplesSink(const std::string& path, std::int64_t start_step, std::int64_t attempt,
              double last_tries = kLastTries);
  ~SamplesSink() override;
  const std::string& warning() const;
  void on_step(const StepRecord&) override;
  void on_restart(const RestartRecord&) override;
  /// Throws SpecError when lines were lost.
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Appends evaluations, checkpoints and notices to events.jsonl. Opening for a resumed run first drops the
/// evaluations and checkpoints after `start_step`, and a torn last line; notices say what happened, and
/// stay. Garbled lines as above.
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
  /// Throws SpecError when lines were lost.
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Progress for a person: a bar with ETA, loss, tokens/s and MFU on a terminal; plain lines, a few a minute,
/// elsewhere; a start banner and a closing summary.
class ConsoleSink final : public MetricsSink {
 public:
  /// `log` gets the same lines, and one a minute of progress; both outlive this.
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

/// Collects the run and writes report.html, after its first step, every minute and at its end: loss, learning
/// rate, gradient norm, tokens/s, MFU and the time ledger as inline SVG, what ran and where, and the history
/// of all attempts; no outside fetch. Reads what earlier processes of the run did, up to `start_step`, back
/// from the logs; without a step of its own it shows theirs alone.
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
  /// Throws SpecError when it cannot be written within `last_tries` seconds.
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
