#pragma once

#include <string>

namespace trainerd::io {

/// Where an MLflow server logs the run.
struct MlflowOptions {
  std::string uri = {};  ///< http:// or https://; empty: none does
  std::string experiment = "Default";

  bool logs() const { return !uri.empty(); }

  bool operator==(const MlflowOptions&) const = default;
};

struct MetricsOptions {
  /// host:port: a port that is taken stands for the next free one, port 0 for any; or "off".
  std::string listen = "127.0.0.1:9464";
  /// Directory of files for Prometheus' file-based service discovery, one of each process that serves; empty:
  /// none.
  std::string discovery = {};
  bool tensorboard = false;  ///< event files in the output directory
  MlflowOptions mlflow = {};

  bool serves() const { return listen != "off"; }

  bool operator==(const MetricsOptions&) const = default;
};

}  // namespace trainerd::io
