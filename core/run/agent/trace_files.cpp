#include "core/run/agent/trace_files.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <system_error>
#include <tuple>

#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {

std::string TraceFiles::add(std::int64_t rank, const StepTrace& part) {
  Step& step = steps_[part.step];
  step.trace.slices.insert(step.trace.slices.end(), part.slices.begin(), part.slices.end());
  if (!part.last) return "";
  step.trace.processes.push_back({rank, "rank " + std::to_string(rank)});
  step.trace.rows.push_back({rank, 0, "compute stream"});
  if (++step.ended < ranks_) return "";
  const std::string path = write(part.step, step.trace);
  steps_.erase(part.step);
  return path;
}

std::string TraceFiles::write(std::int64_t step, io::Trace& trace) const {
  // The ranks of a machine share a monotonic clock. The trace starts at its first slice.
  const auto in_order = [](const auto& a, const auto& b) {
    return std::tie(a.process, a.start_seconds) < std::tie(b.process, b.start_seconds);
  };
  std::sort(trace.slices.begin(), trace.slices.end(), in_order);
  std::sort(trace.processes.begin(), trace.processes.end(),
            [](const auto& a, const auto& b) { return a.process < b.process; });
  double begin = trace.slices.empty() ? 0 : trace.slices.front().start_seconds;
  for (const io::TraceSlice& slice : trace.slices) begin = std::min(begin, slice.start_seconds);
  for (io::TraceSlice& slice : trace.slices) slice.start_seconds -= begin;

  std::string number = std::to_string(step);
  number.insert(0, number.size() < 8 ? 8 - number.size() : 0, '0');
  const std::string path = directory_ + "/step-" + number + suffix_ + ".json",
                    text = io::to_chrome_json(trace);
  std::error_code ignored;  // the write reports it
  std::filesystem::create_directories(directory_, ignored);
  if (const int error = base::write_file_atomically(path, std::as_bytes(std::span(text))); error != 0)
    throw base::data_error(path + ": cannot write the trace: " + base::errno_text(error) +
                           "; free some space or set output: to another directory");
  return path;
}

}  // namespace trainerd::core::run
