#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/metrics/sink.h"

namespace trainerd::core::run {

/// All sinks of a run behind one interface.
class RunSinks {
 public:
  bool none() const { return sinks_.empty(); }
  void add(std::unique_ptr<io::MetricsSink> sink) { sinks_.push_back(std::move(sink)); }
  /// From now on sinks are called only while `allowed` returns true: a frozen leader may have a successor.
  void write_while(std::function<bool()> allowed) { allowed_ = std::move(allowed); }
  template <class Record>
  void each(void (io::MetricsSink::*method)(const Record&), const Record& record) {
    if (!allowed_()) return;
    for (const auto& sink : sinks_) (*sink.*method)(record);
  }
  /// Sends every sink the changes of the outlets. Returns a text for each outlet that has begun or stopped
  /// failing.
  std::vector<std::string> watch();
  /// Calls every sink even if another one throws, then throws the first error.
  void finish(const io::RunSummary& summary);

 private:
  std::function<bool()> allowed_ = [] { return true; };
  std::vector<std::unique_ptr<io::MetricsSink>> sinks_;
  std::map<std::string, io::OutletRecord> outlets_;  ///< by name: the state seen last
  std::map<std::string, std::int64_t> lost_before_;  ///< by name: lines dropped when the outlet last worked
};

}  // namespace trainerd::core::run
