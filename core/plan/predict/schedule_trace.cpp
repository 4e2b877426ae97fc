#include "core/plan/predict/schedule_trace.h"

#include <algorithm>

#include "core/train/step_trace.h"

namespace trainerd::core::plan {
namespace {

using parallel::ActionKind;
using parallel::TimedAction;

constexpr double kShortest = 0.5e-9;  // seconds: sums of costs in different orders differ by less

struct NamedTime {
  const char* name;
  double seconds;
};

std::vector<NamedTime> parts_of(ActionKind kind, const parallel::ActionCosts& costs) {
  switch (kind) {
    case ActionKind::forward:
    case ActionKind::forward_only: return {{train::trace_name(kind), costs.forward}};
    case ActionKind::backward:
      return {{train::trace_name(ActionKind::backward_input), costs.backward_input},
              {train::trace_name(ActionKind::backward_weight), costs.backward_weight}};
    case ActionKind::backward_input: return {{train::trace_name(kind), costs.backward_input}};
    case ActionKind::backward_weight: return {{train::trace_name(kind), costs.backward_weight}};
    default: return {};
  }
}

class Builder {
 public:
  Builder(const parallel::Timeline& timeline, const parallel::ActionCosts& costs)
      : timeline_(timeline), costs_(costs) {}

  io::Trace build() {
    for (std::size_t rank = 0; rank < timeline_.ranks.size(); ++rank)
      add_rank(static_cast<std::int64_t>(rank));
    return std::move(trace_);
  }

 private:
  void add_rank(std::int64_t rank) {
    trace_.processes.push_back({rank, "pipeline rank " + std::to_string(rank)});
    trace_.rows.push_back({rank, 0, "compute"});
    double end = 0;
    std::vector<double> free_at;  // end of the last message, by row
    for (const TimedAction& timed : timeline_.ranks[static_cast<std::size_t>(rank)]) {
      if (is_send(timed.action.kind) && timeline_.transfer > 0) add_message(rank, timed, free_at);
      double at = timed.action.joins ? end : timed.start;  // behind the forward that it takes turns with
      for (const NamedTime& part : parts_of(timed.action.kind, costs_)) {
        add_bubble(rank, end, at);
        trace_.slices.push_back({.name = part.name,
                                 .category = "compute",
                                 .process = rank,
                                 .row = 0,
                                 .start_seconds = at,
                                 .seconds = part.seconds,
                                 .numbers = numbers(timed)});
        end = at += part.seconds;
      }
    }
    add_bubble(rank, end, timeline_.makespan);
  }

  void add_bubble(std::int64_t rank, double from, double to) {
    if (to - from < kShortest) return;
    trace_.slices.push_back({.name = "bubble",
                             .category = "bubble",
                             .process = rank,
                             .row = 0,
                             .start_seconds = from,
                             .seconds = to - from});
  }

  /// Uses the first free row: messages may overlap.
  void add_message(std::int64_t rank, const TimedAction& sent, std::vector<double>& free_at) {
    std::size_t row = 0;
    while (row < free_at.size() && free_at[row] > sent.end) ++row;
    if (row == free_at.size()) {
      free_at.push_back(0);
      trace_.rows.push_back({rank, static_cast<std::int64_t>(row) + 1, "messages"});
    }
    free_at[row] = sent.end + timeline_.transfer;
    auto with_peer = numbers(sent);
    with_peer.emplace_back("peer", sent.action.peer);
    trace_.slices.push_back({.name = to_string(sent.action.kind),
                             .category = "communication",
                             .process = rank,
                             .row = static_cast<std::int64_t>(row) + 1,
                             .start_seconds = sent.end,
                             .seconds = timeline_.transfer,
                             .numbers = with_peer});
  }

  static std::vector<std::pair<std::string, std::int64_t>> numbers(const TimedAction& timed) {
    return {{"chunk", timed.action.chunk}, {"microbatch", timed.action.microbatch}};
  }

  const parallel::Timeline& timeline_;
  const parallel::ActionCosts& costs_;
  io::Trace trace_;
};

}  // namespace

io::Trace schedule_trace(const parallel::Timeline& timeline, const parallel::ActionCosts& costs) {
  return Builder(timeline, costs).build();
}

}  // namespace trainerd::core::plan
