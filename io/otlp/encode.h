#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trainerd::io {

/// What sends the metrics, as OpenTelemetry names it.
struct OtlpSender {
  /// Attributes of the resource ("service.name", "host.name", ...).
  std::vector<std::pair<std::string, std::string>> resource;
  /// On every data point, as Prometheus puts the labels of a target on every sample.
  std::vector<std::pair<std::string, std::string>> labels;
  std::string version;
  std::uint64_t start_nanoseconds = 0;  ///< Unix time from which its counters count
};

/// An ExportMetricsServiceRequest (opentelemetry-proto 1.x, opentelemetry/proto/collector/metrics/v1) in
/// binary encoding. Names are kept. Counters are cumulative monotonic sums, histograms cumulative ones with
/// explicit bounds. A unit follows from the end of a name: `_seconds` is "s", `_bytes` is "By".
std::string encode_otlp(const std::vector<prometheus::MetricFamily>& families, const OtlpSender& sender,
                        std::uint64_t now_nanoseconds);

/// What an ExportMetricsServiceResponse says of data points that were not taken; empty: all were.
std::string otlp_rejection(const std::string& response);

}  // namespace trainerd::io
