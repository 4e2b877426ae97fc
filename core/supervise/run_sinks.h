#pragma once

#include <spdlog/spdlog.h>

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "io/metrics/sink.h"

namespace trainerd::core {

/// Every sink of a run, as one.
class RunSinks {
 public:
  bool none() const { return sinks_.empty(); }
  void add(std::unique_ptr<io::MetricsSink> sink) { sinks_.push_back(std::move(sink)); }
  template <class Record>
  void each(void (io::MetricsSink::*method)(const Record&), const Record& record) {
    for (const auto& sink : sinks_) (*sink.*method)(record);
  }
  /// Every sink hears of the end, whatever becomes of another. Throws the first error when all have heard.
  void finish(const io::RunSummary& summary) {
    std::exception_ptr first;
    for (const auto& sink : sinks_) {
      try {
        sink->on_finish(summary);
      } catch (const std::exception& error) {
        if (first) spdlog::error("at the end of the run: {}", error.what());
        if (!first) first = std::current_exception();
      }
    }
    if (first) std::rethrow_exception(first);
  }

 private:
  std::vector<std::unique_ptr<io::MetricsSink>> sinks_;
};

}  // namespace trainerd::core
