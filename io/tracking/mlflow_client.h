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

/// Why a call to the server failed.
struct MlflowError {
  std::string what;
  bool may_pass = true;  ///< true: may succeed later; false: the server rejects it
};

/// Values of one step.
struct MlflowValues {
  std::int64_t step = 0;
  double wall_time = 0;
  std::vector<std::pair<std::string, double>> values;
};

/// Calls MLflow's REST API 2.0 (mlflow.org/docs/latest/rest-api.html) for one run. For one thread, except
/// `abort`. Functions throw MlflowError.
class MlflowClient {
 public:
  MlflowClient(const MlflowRun& run, double timeout_seconds);

  /// Finds the run named in `state_path`, or creates one and writes its id there. Then logs parameters and
  /// tags. A run that was deleted on the server is replaced.
  void attach(const MlflowRun& run);
  /// Returns the last step of a metric on the server; 0 if it has none.
  std::int64_t last_step(const std::string& metric) const;
  /// Logs the values that the run does not have yet.
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
  std::map<std::string, std::string> params_;      ///< parameters on the server
  std::map<std::string, std::int64_t> last_step_;  ///< per metric, last step on the server
};

}  // namespace trainerd::io
