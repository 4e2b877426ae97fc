#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/metrics/options.h"
#include "io/metrics/sink.h"

// Sinks of a run for experiment trackers.

namespace trainerd::io {

/// Appends scalars to a TensorBoard event file of this process's own in `folder`. Steps that are done again
/// replace the earlier ones in TensorBoard.
class TensorboardSink final : public MetricsSink {
 public:
  /// Makes folder and file. Throws SpecError.
  TensorboardSink(const std::string& folder, std::int64_t start_step);
  ~TensorboardSink() override;
  void on_step(const StepRecord&) override;
  void on_evaluation(const EvaluationRecord&) override;
  void on_restart(const RestartRecord&) override;
  /// Throws SpecError when events were lost.
  void on_finish(const RunSummary&) override;
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Of this process's environment; never written anywhere.
struct TrackerCredentials {
  std::string token;           ///< sent as "Authorization: Bearer"
  std::string user, password;  ///< without a token: as "Authorization: Basic"
};

/// What an MLflow run is made of.
struct MlflowRun {
  MlflowOptions server;
  TrackerCredentials credentials = {};
  std::string state_path;  ///< keeps the run's id, so that a resumed run goes on with it
  std::string name;
  /// The run's logs: what earlier attempts could not send is sent from there.
  std::string steps_path = {}, events_path = {};
  std::vector<std::pair<std::string, std::string>> params = {};
  std::vector<std::pair<std::string, std::string>> tags = {};
  /// Once it is false nothing is sent any more, the run's end neither: another process logs it. Any thread.
  std::function<bool()> allowed = [] { return true; };
};

/// Logs a run on an MLflow server by its REST API 2.0, on a thread of its own. Values wait while the server
/// does not answer, the oldest are dropped beyond `max_waiting` records, and tries come 1, 2, 4 ... up to 60
/// s after each other. A value of a step that the MLflow run has already is not sent again, since MLflow
/// would show both: steps that are done again stay as they were done first.
class MlflowSink final : public MetricsSink {
 public:
  struct Limits {
    double every_seconds = 2;     ///< between two requests, where nothing has gone wrong
    double timeout_seconds = 10;  ///< of a request
    double end_seconds = 5;       ///< for what waits at the end of the run
    std::size_t max_waiting = 50'000;
  };
  /// `warn` gets a line when the end of the run did not reach the server. Throws SpecError without libcurl.
  MlflowSink(MlflowRun run, std::function<void(const std::string&)> warn, Limits limits);
  MlflowSink(MlflowRun run, std::function<void(const std::string&)> warn)
      : MlflowSink(std::move(run), std::move(warn), Limits{}) {}
  /// Without `on_finish` before: the MLflow run ends as killed where the server answers within a second.
  ~MlflowSink() override;
  /// Adds to the tags what is known only now, and begins.
  void on_start(const RunInfo&) override;
  void on_step(const StepRecord&) override;
  void on_evaluation(const EvaluationRecord&) override;
  void on_notice(const NoticeRecord&) override;
  void on_finish(const RunSummary&) override;
  /// Its lines are records.
  std::vector<OutletRecord> outlets() const override;

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< the thread's too
};

}  // namespace trainerd::io
