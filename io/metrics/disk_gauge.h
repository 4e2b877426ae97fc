#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <sys/statvfs.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace trainerd::io {

/// A gauge of the free bytes of a file system, computed at each scrape. Absent until `watch` is called, and
/// if the file system does not report it. If the file system hangs, so does the scrape: the run then counts
/// as down, and its records cannot be written either.
class DiskGauge final : public prometheus::Collectable {
 public:
  DiskGauge(std::string name, std::string help) : name_(std::move(name)), help_(std::move(help)) {}
  /// `path`: a file or directory on the file system.
  void watch(std::string path) {
    const std::scoped_lock lock(mutex_);
    path_ = std::move(path);
  }
  std::vector<prometheus::MetricFamily> Collect() const override {
    struct statvfs disk {};
    if (const std::string path = watched(); path.empty() || ::statvfs(path.c_str(), &disk) != 0) return {};
    prometheus::ClientMetric metric;
    metric.gauge.value = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
    return {{.name = name_, .help = help_, .type = prometheus::MetricType::Gauge, .metric = {metric}}};
  }

 private:
  std::string watched() const {
    const std::scoped_lock lock(mutex_);
    return path_;
  }
  std::string name_, help_, path_;
  mutable std::mutex mutex_;  // scrapes come from another thread
};

}  // namespace trainerd::io
