#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/metrics/options.h"
#include "io/metrics/sink.h"

// Sinks for experiment trackers.

namespace trainerd::io {

/// Appends scalars to this process's own TensorBoard event file in `folder`. Repeated steps replace the
/// earlier ones in TensorBoard.
class TensorboardSink final : public MetricsSink {
 public:
  /// Makes folder and file. Throws SpecError.
  TensorboardSink(const std::string& folder, std::int64_t start_step);
  ~TensorboardSink() override;
  void on_step(const StepRecord&) override;
  void on_evaluation(const EvaluationRecord&) override;
  void on_restart(const RestartRecord&) override;
  /// Throws SpecError if events were lost.
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// From this process's environment; never written anywhere.
struct TrackerCredentials {
  std::string token;           ///< sent as "Authorization: Bearer"
  std::string user, password;  ///< used without a token, as "Authorization: Basic"
};

/// Description of an MLflow run.
struct MlflowRun {
  MlflowOptions server;
  TrackerCredentials credentials = {};
  std::string state_path;  ///< file that keeps the run's id for a resumed run
  std::string name;
  /// The run's logs, from which values that earlier attempts could not send are sent.
  std::string steps_path = {}, events_path = {};
  std::vector<std::pair<std::string, std::string>> params = {};
  std::vector<std::pair<std::string, std::string>> tags = {};
  /// When it returns false, nothing more is sent, not even the run's end: another process now logs the run.
  /// Thread-safe.
  std::function<bool()> allowed = [] { return true; };
};

/// Logs a run on an MLflow server by its REST API 2.0, on its own thread. While the server does not answer,
/// values are queued (at most `max_waiting` records, then the oldest is dropped) and retried after 1, 2, 4
/// ... up to 60 s. A step that the MLflow run already has is not sent again, since MLflow would show both
/// values. Repeated steps therefore keep their first values.
class MlflowSink final : public MetricsSink {
 public:
  struct Limits {
    double every_seconds = 2;     ///< between two requests without errors
    double timeout_seconds = 10;  ///< per request
    double end_seconds = 10;      ///< for the remaining values at the end of the run
    std::size_t max_waiting = 50'000;
  };
  /// `warn` gets a line if the end of the run did not reach the server. Throws SpecError if libcurl is
  /// missing.
  MlflowSink(MlflowRun run, std::function<void(const std::string&)> warn, Limits limits);
  MlflowSink(MlflowRun run, std::function<void(const std::string&)> warn)
      : MlflowSink(std::move(run), std::move(warn), Limits{}) {}
  /// Without `on_finish` the MLflow run ends as killed, if the server answers within a second.
  ~MlflowSink() override;
  /// Adds tags that are known only now, and starts.
  void on_start(const RunInfo&) override;
  void on_step(const StepRecord&) override;
  void on_evaluation(const EvaluationRecord&) override;
  void on_notice(const NoticeRecord&) override;
  void on_finish(const RunSummary&) override;
  /// State of the queue; its lines are records.
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with the thread
};

}  // namespace trainerd::io
