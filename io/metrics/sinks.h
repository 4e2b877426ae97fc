#pragma once

#include <memory>
#include <string>

#include "io/console/screen.h"
#include "io/metrics/options.h"
#include "io/metrics/sink.h"

namespace trainerd::io {

/// Serves /metrics in Prometheus' text format through prometheus-cpp.
class PrometheusSink final : public MetricsSink {
 public:
  /// Where the port of `listen` is taken, the next free one is. Throws SpecError for an address that is not this machine's, or that
  /// is none, naming it; `listen` is not "off".
  explicit PrometheusSink(const MetricsOptions& options);
  ~PrometheusSink() override;
  /// "127.0.0.1:40123": what was bound.
  std::string address() const;
  /// Whether that is another port than the one asked for, which is taken.
  bool moved() const;

  void on_start(const RunInfo&) override;
  void on_step(const StepRecord&) override;
  void on_evaluation(const EvaluationRecord&) override;
  void on_checkpoint(const CheckpointRecord&) override;
  void on_device(const DeviceRecord&) override;
  void on_prediction(const PredictionRecord&) override;
  void on_finish(const RunSummary&) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Appends to steps.jsonl. Opening for a resumed run first drops the lines after `start_step` (a run killed
/// between a checkpoint and its end will do those steps again), and a torn last line.
class JsonlSink final : public MetricsSink {
 public:
  JsonlSink(std::string path, std::int64_t start_step);
  ~JsonlSink() override;
  void on_step(const StepRecord&) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Appends evaluations, checkpoints and notices to events.jsonl. Opening for a resumed run first drops the evaluations and
/// checkpoints after `start_step`, and a torn last line; notices tell what happened, and stay.
class EventLogSink final : public MetricsSink {
 public:
  EventLogSink(std::string path, std::int64_t start_step);
  ~EventLogSink() override;
  void on_step(const StepRecord&) override {}
  void on_evaluation(const EvaluationRecord&) override;
  void on_checkpoint(const CheckpointRecord&) override;
  void on_notice(const NoticeRecord&) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Progress for a person: a bar with ETA, loss, tokens/s and MFU on a terminal; plain lines, a few a minute,
/// elsewhere; a start banner and a closing summary.
class ConsoleSink final : public MetricsSink {
 public:
  /// `screen` outlives this.
  explicit ConsoleSink(Screen& screen);
  ~ConsoleSink() override;
  void on_start(const RunInfo&) override;
  void on_step(const StepRecord&) override;
  void on_evaluation(const EvaluationRecord&) override;
  void on_checkpoint(const CheckpointRecord&) override;
  void on_finish(const RunSummary&) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Collects the run and writes report.html when it ends: loss, learning rate, gradient norm, tokens/s, MFU
/// and the time ledger as inline SVG; no outside fetch. Reads what earlier processes of the run did, up to
/// `start_step`, back from the logs; without a step of its own it shows theirs alone.
class ReportSink final : public MetricsSink {
 public:
  /// `job_yaml` is shown in the report. `steps_path` and `events_path` are the logs of the same run.
  ReportSink(std::string path, std::string steps_path, std::string events_path, std::string job_yaml);
  ~ReportSink() override;
  void on_start(const RunInfo&) override;
  void on_step(const StepRecord&) override;
  void on_evaluation(const EvaluationRecord&) override;
  void on_checkpoint(const CheckpointRecord&) override;
  void on_prediction(const PredictionRecord&) override;
  void on_finish(const RunSummary&) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
