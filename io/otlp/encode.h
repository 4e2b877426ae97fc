#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trainerd::io {

/// The sender of the metrics, in OpenTelemetry's terms.
struct OtlpSender {
  /// Attributes of the resource ("service.name", "host.name", ...).
  std::vector<std::pair<std::string, std::string>> resource;
  /// Added to every data point, as Prometheus adds the labels of a target to every sample.
  std::vector<std::pair<std::string, std::string>> labels;
  std::string version;
  std::uint64_t start_nanoseconds = 0;  ///< Unix time at which its counters were 0
};

/// Encodes an ExportMetricsServiceRequest (opentelemetry-proto 1.x, opentelemetry/proto/collector/metrics/v1)
/// in binary. Names are kept. Counters become cumulative monotonic sums, histograms cumulative ones with
/// explicit bounds. The end of a name gives the unit: `_seconds` is "s", `_bytes` is "By".
std::string encode_otlp(const std::vector<prometheus::MetricFamily>& families, const OtlpSender& sender,
                        std::uint64_t now_nanoseconds);

/// Returns what an ExportMetricsServiceResponse says about rejected data points; empty if all were accepted.
std::string otlp_rejection(const std::string& response);

}  // namespace trainerd::io
