#include "core/run/agent/run_sinks.h"

#include <exception>

#include "core/run/log/log.h"

namespace trainerd::core::run {
namespace {

std::string lines(std::int64_t count) { return std::to_string(count) + (count == 1 ? " line" : " lines"); }

}  // namespace

std::vector<std::string> RunSinks::watch() {
  std::vector<std::string> warnings;
  for (const auto& sink : sinks_)
    for (const io::OutletRecord& now : sink->outlets()) {
      const auto [known, is_new] = outlets_.try_emplace(now.name);
      io::OutletRecord& before = known->second;
      if (!is_new && now == before) continue;
      each(&io::MetricsSink::on_outlet, now);
      if (before.error.empty() && !now.error.empty()) {
        warnings.push_back(now.name + " cannot be written: " + now.error + "; training goes on" +
                           (now.waiting > 0 ? ", its lines wait" : ""));
      } else if (!before.error.empty() && now.error.empty()) {
        const std::int64_t lost = now.dropped - lost_before_[now.name];
        warnings.push_back(now.name + " is written again; " +
                           (lost == 0 ? "nothing lost" : lines(lost) + " lost"));
      }
      if (now.error.empty()) lost_before_[now.name] = now.dropped;
      before = now;
    }
  return warnings;
}

void RunSinks::finish(const io::RunSummary& summary) {
  if (!allowed_()) return;
  std::exception_ptr first;
  for (const auto& sink : sinks_) {
    try {
      sink->on_finish(summary);
    } catch (const std::exception& error) {
      if (first) log::error("at the end of the run: {}", error.what());
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace trainerd::core::run
