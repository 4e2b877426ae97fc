#pragma once

// Helpers of this folder's sources to make and fill metrics of prometheus-cpp.

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <algorithm>

#include "kernels/base/ledger.h"

namespace trainerd::io {

inline prometheus::Family<prometheus::Gauge>& gauge(prometheus::Registry& registry, const char* name,
                                                    const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}
inline prometheus::Family<prometheus::Counter>& counter(prometheus::Registry& registry, const char* name,
                                                        const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}
inline prometheus::Family<prometheus::Histogram>& histogram(prometheus::Registry& registry, const char* name,
                                                            const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

/// The only series of a family without labels. It is made when its first value is known, so an unknown value
/// is absent.
template <class Metric>
class Single {
 public:
  explicit Single(prometheus::Family<Metric>& family) : family_(family) {}
  Metric& get() {
    if (metric_ == nullptr) metric_ = &family_.Add({});
    return *metric_;
  }
  void remove() {
    if (metric_ != nullptr) family_.Remove(metric_);
    metric_ = nullptr;
  }

 private:
  prometheus::Family<Metric>& family_;
  Metric* metric_ = nullptr;
};

/// Exposed communication is one part with a label for the axis, so a sum by part is the ledger without axes.
inline prometheus::Labels labels_of(const base::LedgerPartInfo& part) {
  if (*part.axis == 0) return {{"part", part.name}};
  return {{"part", "exposed_communication"}, {"axis", part.axis}};
}

/// Raises a counter to `total`: records carry totals, but counters take increments.
inline void raise_to(prometheus::Counter& counter, double total) {
  counter.Increment(std::max(0.0, total - counter.Value()));
}

}  // namespace trainerd::io
