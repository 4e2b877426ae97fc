#pragma once

#include <string>

namespace trainerd::io {

struct OtlpOptions {
  /// "http://host:4318": a receiver of OTLP over HTTP, to whose path /v1/metrics is added; empty: none.
  std::string endpoint = {};
  double every_seconds = 10;

  bool sends() const { return !endpoint.empty(); }

  bool operator==(const OtlpOptions&) const = default;
};

struct MetricsOptions {
  /// host:port: a port that is taken stands for the next free one, port 0 for any; or "off".
  std::string listen = "127.0.0.1:9464";
  /// Directory of files for Prometheus' file-based service discovery, one of each process that serves; empty:
  /// none.
  std::string discovery = {};

  OtlpOptions otlp = {};
  /// The kernel's tree of energy counters.
  std::string powercap = "/sys/class/powercap";

  bool serves() const { return listen != "off"; }

  bool operator==(const MetricsOptions&) const = default;
};

}  // namespace trainerd::io
