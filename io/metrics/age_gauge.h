#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <atomic>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"

namespace trainerd::io {

/// A gauge of the seconds since an event, computed at each scrape. Absent until `set` is called.
class AgeGauge final : public prometheus::Collectable {
 public:
  AgeGauge(std::string name, std::string help) : name_(std::move(name)), help_(std::move(help)) {}
  /// Records that the event happens now.
  void set() { since_ = base::monotonic_seconds(); }
  std::vector<prometheus::MetricFamily> Collect() const override {
    const double since = since_;
    if (since < 0) return {};
    prometheus::ClientMetric metric;
    metric.gauge.value = base::monotonic_seconds() - since;
    return {{.name = name_, .help = help_, .type = prometheus::MetricType::Gauge, .metric = {metric}}};
  }

 private:
  std::string name_, help_;
  std::atomic<double> since_ = -1;  // scrapes come from another thread
};

}  // namespace trainerd::io
