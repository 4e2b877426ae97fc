#include "core/train/step_trace.h"

#include <algorithm>

namespace trainerd::core::train {

using parallel::ActionKind;

const char* trace_name(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward_only: return "forward";
    case ActionKind::backward_input: return "input gradient";
    case ActionKind::backward_weight: return "weight gradient";
    default: return to_string(kind);
  }
}

io::TraceSlice trace_slice(base::LedgerPart part, const StreamWork& work, double start_seconds,
                           double seconds) {
  const base::LedgerPartInfo& ledger = info(part);
  io::TraceSlice slice{
      .name = ledger.name, .category = ledger.name, .start_seconds = start_seconds, .seconds = seconds};
  if (part == base::LedgerPart::compute && work.action != nullptr) slice.name = work.action;
  if (ledger.axis[0] != '\0' && work.call)
    slice.name = std::string(ledger.axis) + " " + to_string(work.call->kind);
  if (work.action != nullptr) slice.numbers = {{"chunk", work.chunk}, {"microbatch", work.microbatch}};
  if (work.call) {
    slice.numbers.emplace_back("bytes", work.call->bytes);
    slice.label = work.call->label;
  }
  return slice;
}

std::vector<io::TraceSlice> filled_trace(std::vector<io::TraceSlice> slices, std::int64_t rank, double begin,
                                         double end) {
  std::vector<io::TraceSlice> filled;
  double at = begin;
  const auto fill = [&](double until) {
    if (until > at)
      filled.push_back({.name = "other", .category = "other", .start_seconds = at, .seconds = until - at});
  };
  for (io::TraceSlice& slice : slices) {
    if (slice.seconds <= 0) continue;
    fill(slice.start_seconds);
    at = slice.start_seconds + slice.seconds;
    filled.push_back(std::move(slice));
  }
  fill(end);
  for (io::TraceSlice& slice : filled) slice.process = rank;
  return filled;
}

}  // namespace trainerd::core::train
