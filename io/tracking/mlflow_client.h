#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/http/http_client.h"
#include "io/tracking/tracking.h"

namespace trainerd::io {

/// Why a call to the server did not succeed.
struct MlflowError {
  std::string what;
  bool may_pass = true;  ///< to be tried again; false: the server refuses it
};

/// Values of one step.
struct MlflowValues {
  std::int64_t step = 0;
  double wall_time = 0;
  std::vector<std::pair<std::string, double>> values;
};

/// Calls MLflow's REST API 2.0 (mlflow.org/docs/latest/rest-api.html) for one run. Used by one thread,
/// `abort` aside. Functions throw MlflowError.
class MlflowClient {
 public:
  MlflowClient(const MlflowRun& run, double timeout_seconds);

  /// Finds the run that `state_path` names, or makes one and writes its id there; then logs parameters and
  /// tags. A run that the server has deleted is replaced.
  void attach(const MlflowRun& run);
  /// Of a metric, the last that the run has; 0: none.
  std::int64_t last_step(const std::string& metric) const;
  /// Those that the run does not have yet.
  void log(const std::vector<MlflowValues>& values);
  /// `status`: FINISHED, FAILED or KILLED.
  void end(const std::string& status);
  void abort() { http_.abort(); }

 private:
  struct Answer;
  Answer call(const std::string& path, std::optional<std::string> body);
  std::string post(const std::string& path, const std::string& body);
  std::optional<std::string> find_experiment();
  std::string experiment_id();
  bool find_run(const std::string& id);
  void make_run(const MlflowRun& run);
  void log_params(const MlflowRun& run);

  HttpClient http_;
  MlflowOptions server_;
  std::vector<std::string> headers_;
  double timeout_seconds_;
  std::string run_id_;
  std::map<std::string, std::string> params_;      ///< that the run has
  std::map<std::string, std::int64_t> last_step_;  ///< of each metric, that the run has
};

}  // namespace trainerd::io
