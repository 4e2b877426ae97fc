#include "io/otlp/encode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "io/otlp/protobuf.h"

namespace trainerd::io {
namespace {

// Field numbers are those of opentelemetry/proto/{common,resource,metrics}/v1.
constexpr std::uint64_t kCumulative = 2;

ProtobufWriter key_value(const std::string& key, const std::string& text) {
  ProtobufWriter value, pair;
  value.add_bytes(1, text);  // AnyValue.string_value
  pair.add_bytes(1, key);
  pair.add_message(2, value);
  return pair;
}

struct Unit {
  std::string_view ending, unit;
};
/// Returns the unit in UCUM, as OpenTelemetry's conventions require; empty if the name has no known ending.
std::string_view unit_of(std::string_view name) {
  constexpr std::array kUnits{Unit{"_seconds", "s"}, Unit{"_bytes", "By"}, Unit{"_joules", "J"},
                              Unit{"_watts", "W"},   Unit{"_hertz", "Hz"}, Unit{"_celsius", "Cel"},
                              Unit{"_ratio", "1"}};
  if (constexpr std::string_view kTotal = "_total"; name.ends_with(kTotal)) name.remove_suffix(kTotal.size());
  for (const Unit& known : kUnits)
    if (name.ends_with(known.ending)) return known.unit;
  return "";
}

class Encoder {
 public:
  Encoder(const OtlpSender& sender, std::uint64_t now) : sender_(sender), now_(now) {}

  ProtobufWriter metric(const prometheus::MetricFamily& family) const {
    ProtobufWriter out;
    out.add_bytes(1, family.name);
    out.add_bytes(2, family.help);
    if (const std::string_view unit = unit_of(family.name); !unit.empty()) out.add_bytes(3, unit);
    ProtobufWriter data;
    for (const prometheus::ClientMetric& metric : family.metric)
      data.add_message(
          1, family.type == prometheus::MetricType::Histogram
                 ? histogram_point(metric)
                 : number_point(metric, family.type == prometheus::MetricType::Counter ? metric.counter.value
                                                                                       : metric.gauge.value));
    switch (family.type) {
      case prometheus::MetricType::Counter:
        data.add_varint(2, kCumulative);
        data.add_varint(3, 1);  // monotonic
        out.add_message(7, data);
        break;
      case prometheus::MetricType::Histogram:
        data.add_varint(2, kCumulative);
        out.add_message(9, data);
        break;
      default: out.add_message(5, data);
    }
    return out;
  }

 private:
  void add_attributes(ProtobufWriter& point, unsigned field, const prometheus::ClientMetric& metric) const {
    // A point may have each attribute only once: a metric's own label replaces the sender's.
    const auto own = [&](const std::string& name) {
      return std::any_of(metric.label.begin(), metric.label.end(),
                         [&](const auto& label) { return label.name == name; });
    };
    for (const auto& [name, value] : sender_.labels)
      if (!own(name)) point.add_message(field, key_value(name, value));
    for (const auto& label : metric.label) point.add_message(field, key_value(label.name, label.value));
  }
  void add_times(ProtobufWriter& point) const {
    point.add_fixed64(2, sender_.start_nanoseconds);
    point.add_fixed64(3, now_);
  }

  ProtobufWriter number_point(const prometheus::ClientMetric& metric, double value) const {
    ProtobufWriter point;
    add_times(point);
    point.add_double(4, value);
    add_attributes(point, 7, metric);
    return point;
  }

  /// A bucket counts values above the previous bound. The last one, up to infinity, has no bound.
  ProtobufWriter histogram_point(const prometheus::ClientMetric& metric) const {
    ProtobufWriter point, counts, bounds;
    add_times(point);
    point.add_fixed64(4, metric.histogram.sample_count);
    point.add_double(5, metric.histogram.sample_sum);
    std::uint64_t below = 0;
    for (const auto& bucket : metric.histogram.bucket) {
      if (std::isinf(bucket.upper_bound)) continue;
      counts.fixed64(bucket.cumulative_count - below);
      bounds.fixed64(std::bit_cast<std::uint64_t>(bucket.upper_bound));
      below = bucket.cumulative_count;
    }
    counts.fixed64(metric.histogram.sample_count - below);
    point.add_message(6, counts);
    point.add_message(7, bounds);
    add_attributes(point, 9, metric);
    return point;
  }

  const OtlpSender& sender_;
  std::uint64_t now_;
};

}  // namespace

std::string encode_otlp(const std::vector<prometheus::MetricFamily>& families, const OtlpSender& sender,
                        std::uint64_t now_nanoseconds) {
  const Encoder encoder(sender, now_nanoseconds);
  ProtobufWriter resource, scope, scope_metrics, resource_metrics, request;
  for (const auto& [key, value] : sender.resource) resource.add_message(1, key_value(key, value));
  scope.add_bytes(1, "trainerd");
  scope.add_bytes(2, sender.version);
  scope_metrics.add_message(1, scope);
  for (const prometheus::MetricFamily& family : families)
    if (!family.metric.empty()) scope_metrics.add_message(2, encoder.metric(family));
  resource_metrics.add_message(1, resource);
  resource_metrics.add_message(2, scope_metrics);
  request.add_message(1, resource_metrics);
  return request.text();
}

std::string otlp_rejection(const std::string& response) {
  for (ProtobufReader reply(response); const auto field = reply.next();) {
    if (field->number != 1) continue;  // ExportMetricsPartialSuccess
    std::uint64_t points = 0;
    std::string message;
    for (ProtobufReader partial(field->bytes); const auto part = partial.next();) {
      if (part->number == 1) points = part->value;
      if (part->number == 2) message = part->bytes;
    }
    // Without rejected points the message is only advice.
    if (points > 0)
      return std::to_string(points) + " data points were rejected" + (message.empty() ? "" : ": " + message);
  }
  return "";
}

}  // namespace trainerd::io
