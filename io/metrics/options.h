#pragma once

#include <cstdint>
#include <string>

namespace trainerd::io {

struct OtlpOptions {
  /// "http://host:4318": a receiver of OTLP over HTTP, to whose path /v1/metrics is added; empty: none.
  std::string endpoint = {};
  double every_seconds = 10;

  bool sends() const { return !endpoint.empty(); }

  bool operator==(const OtlpOptions&) const = default;
};

/// Where an MLflow server logs the run.
struct MlflowOptions {
  std::string uri = {};  ///< http:// or https://; empty: none does
  std::string experiment = "Default";

  bool logs() const { return !uri.empty(); }

  bool operator==(const MlflowOptions&) const = default;
};

/// The norm of the gradients is also reported separately for each of these.
enum class NormGroups : std::uint8_t { kind, layer };

struct GroupNormOptions {
  std::int64_t every = 0;  ///< steps; 0: never
  NormGroups by = NormGroups::kind;

  bool operator==(const GroupNormOptions&) const = default;
};

struct MetricsOptions {
  /// host:port: a port that is taken stands for the next free one, port 0 for any; or "off".
  std::string listen = "127.0.0.1:9464";
  /// Directory of files for Prometheus' file-based service discovery, one of each process that serves; empty:
  /// none.
  std::string discovery = {};
  bool tensorboard = false;  ///< event files in the output directory
  MlflowOptions mlflow = {};

  OtlpOptions otlp = {};
  GroupNormOptions grad_norms = {};
  /// The kernel's tree of energy counters.
  std::string powercap = "/sys/class/powercap";

  bool serves() const { return listen != "off"; }

  bool operator==(const MetricsOptions&) const = default;
};

}  // namespace trainerd::io
