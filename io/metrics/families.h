#pragma once

// How the sources of this room make and fill metrics of prometheus-cpp.

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

/// A family's one series without labels, made when there is first something to say: what is not known is
/// absent.
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

/// Exposed communication is one part with a label for the axis: a sum by part is the ledger without axes.
inline prometheus::Labels labels_of(const base::LedgerPartInfo& part) {
  if (*part.axis == 0) return {{"part", part.name}};
  return {{"part", "exposed_communication"}, {"axis", part.axis}};
}

/// Records carry totals, counters take increments.
inline void raise_to(prometheus::Counter& counter, double total) {
  counter.Increment(std::max(0.0, total - counter.Value()));
}

}  // namespace trainerd::io
