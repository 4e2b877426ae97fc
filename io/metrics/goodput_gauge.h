#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"

namespace trainerd::io {

/// A gauge of useful seconds divided by the wall time since a given moment, computed at each scrape. Absent
/// until `begin` is called.
class GoodputGauge final : public prometheus::Collectable {
 public:
  GoodputGauge(std::string name, std::string help) : name_(std::move(name)), help_(std::move(help)) {}
  /// `since`: Unix seconds; `useful`: useful seconds from then until now.
  void begin(double since, double useful) {
    const std::scoped_lock lock(mutex_);
    since_ = since;
    useful_ = useful;
  }
  /// A negative value takes back seconds that turned out not to be useful.
  void add(double useful) {
    const std::scoped_lock lock(mutex_);
    useful_ += useful;
  }
  std::vector<prometheus::MetricFamily> Collect() const override {
    const std::scoped_lock lock(mutex_);
    const double wall = base::wall_seconds() - since_;
    if (since_ <= 0 || wall <= 0) return {};
    prometheus::ClientMetric metric;
    metric.gauge.value = useful_ / wall;
    return {{.name = name_, .help = help_, .type = prometheus::MetricType::Gauge, .metric = {metric}}};
  }

 private:
  std::string name_, help_;
  double since_ = 0, useful_ = 0;
  mutable std::mutex mutex_;  // scrapes come from another thread
};

}  // namespace trainerd::io
