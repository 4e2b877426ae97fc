#pragma once

#include <cstdint>
#include <string>

namespace trainerd::io {

struct OtlpOptions {
  /// "http://host:4318": a receiver of OTLP over HTTP; /v1/metrics is appended to its path. Empty: none.
  std::string endpoint = {};
  double every_seconds = 10;

  bool sends() const { return !endpoint.empty(); }

  bool operator==(const OtlpOptions&) const = default;
};

/// The MLflow server that logs the run.
struct MlflowOptions {
  std::string uri = {};  ///< http:// or https://; empty: none
  std::string experiment = "Default";

  bool logs() const { return !uri.empty(); }

  bool operator==(const MlflowOptions&) const = default;
};

/// How parameters are grouped for separate gradient norms.
enum class NormGroups : std::uint8_t { kind, layer };

struct GroupNormOptions {
  std::int64_t every = 0;  ///< steps; 0: never
  NormGroups by = NormGroups::kind;

  bool operator==(const GroupNormOptions&) const = default;
};

struct MetricsOptions {
  /// host:port; a port that is taken is replaced by the next free one, port 0 means any; or "off".
  std::string listen = "127.0.0.1:9464";
  /// Directory for Prometheus' file-based service discovery, with one file per serving process; empty: none.
  std::string discovery = {};
  bool tensorboard = false;  ///< writes event files into the output directory
  MlflowOptions mlflow = {};

  OtlpOptions otlp = {};
  GroupNormOptions grad_norms = {};
  /// Root of the kernel's energy counters.
  std::string powercap = "/sys/class/powercap";

  bool serves() const { return listen != "off"; }

  bool operator==(const MetricsOptions&) const = default;
};

}  // namespace trainerd::io
