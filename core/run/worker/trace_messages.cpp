#include "core/run/worker/trace_messages.h"

#include <algorithm>
#include <utility>

#include "core/train/step_trace.h"

namespace trainerd::core::run {

std::vector<StepTrace> trace_messages(std::int64_t step, std::vector<io::TraceSlice> slices,
                                      std::int64_t rank, double begin, double end) {
  constexpr std::size_t kPart = 10'000;  // slices per message
  std::ranges::sort(slices, {}, &io::TraceSlice::start_seconds);
  slices = train::filled_trace(std::move(slices), rank, begin, end);
  std::vector<StepTrace> messages;
  for (std::size_t at = 0; at < slices.size(); at += kPart) {
    const auto first = slices.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t count = std::min(kPart, slices.size() - at);
    messages.push_back(
        {step, {first, first + static_cast<std::ptrdiff_t>(count)}, at + count == slices.size()});
  }
  return messages;
}

}  // namespace trainerd::core::run
