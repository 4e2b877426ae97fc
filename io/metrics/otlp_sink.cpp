#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <cstdint>
#include <iterator>
#include <utility>

#include "io/metrics/sinks.h"
#include "io/otlp/encode.h"
#include "io/otlp/exporter.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

// Time that the end of a run waits for the last payload.
constexpr double kLastPayloadSeconds = 3;

std::uint64_t now_nanoseconds() { return static_cast<std::uint64_t>(1e9 * base::wall_seconds()); }

/// Returns the URL for metrics; `endpoint` is common to all signals.
HttpUrl metrics_url(const std::string& endpoint) {
  std::optional<HttpUrl> url = parse_http_url(endpoint);
  if (!url)
    throw base::spec_error(
        "metrics.otlp.endpoint: \"" + endpoint +
        "\" is not of the form http://host:port; for TLS let a collector on this host send on");
  while (url->path.ends_with('/')) url->path.pop_back();
  url->path += "/v1/metrics";
  return *url;
}

OtlpSender otlp_sender(const OtlpSink::Sender& sender) {
  const std::string node = std::to_string(sender.node);
  return {.resource = {{"service.name", "trainerd"},
                       {"service.version", sender.version},
                       {"service.instance.id", sender.instance},
                       {"host.name", sender.host}},
          .labels = {{"run", sender.run}, {"node", node}},
          .version = sender.version,
          .start_nanoseconds = now_nanoseconds()};
}

}  // namespace

struct OtlpSink::State {
  HttpUrl url;
  OtlpExporter exporter;
};

OtlpSink::OtlpSink(const MetricsOptions& options, const Sender& sender) : RunMetrics(options.powercap) {
  const HttpUrl url = metrics_url(options.otlp.endpoint);
  auto make = [metrics = collectables(), sender = otlp_sender(sender)] {
    std::vector<prometheus::MetricFamily> families;
    for (const auto& source : metrics) {
      std::vector<prometheus::MetricFamily> some = source->Collect();
      families.insert(families.end(), std::make_move_iterator(some.begin()),
                      std::make_move_iterator(some.end()));
    }
    return encode_otlp(families, sender, now_nanoseconds());
  };
  state_.reset(new State{
      url, OtlpExporter({.url = url, .every_seconds = options.otlp.every_seconds}, std::move(make))});
}

OtlpSink::~OtlpSink() = default;

std::string OtlpSink::url() const { return state_->url.text(); }

void OtlpSink::on_finish(const RunSummary& summary) {
  RunMetrics::on_finish(summary);
  state_->exporter.flush(kLastPayloadSeconds);
}

std::vector<OutletRecord> OtlpSink::outlets() const { return {state_->exporter.outlet()}; }

}  // namespace trainerd::io
