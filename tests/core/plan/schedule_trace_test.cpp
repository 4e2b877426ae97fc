#include "core/plan/predict/schedule_trace.h"

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

namespace trainerd::core {
namespace {

using nlohmann::json;
using parallel::ScheduleKind;

constexpr parallel::ActionCosts kCosts{
    .forward = 0.003, .backward_input = 0.004, .backward_weight = 0.002, .transfer = 0.0015};

parallel::Timeline timeline_of(ScheduleKind kind, int virtual_stages) {
  return parallel::timeline(
      parallel::make_schedules(
          {.kind = kind, .stages = 4, .virtual_stages = virtual_stages, .microbatches = 8}),
      kCosts);
}

TEST_CASE("a simulated pass as a trace: rows do not overlap, and are full", "[trace]") {
  for (const auto& [kind, virtual_stages] : std::map<ScheduleKind, int>{{ScheduleKind::gpipe, 1},
                                                                        {ScheduleKind::one_f_one_b, 1},
                                                                        {ScheduleKind::interleaved, 2},
                                                                        {ScheduleKind::zb_h1, 1}}) {
    const parallel::Timeline timeline = timeline_of(kind, virtual_stages);
    const json trace = json::parse(io::to_chrome_json(plan::schedule_trace(timeline, kCosts)));
    std::map<std::pair<int, int>, std::map<double, double>> rows;  // by (process, row): start to end, in us
    std::map<std::string, double> sums;                            // us
    std::map<std::string, int> counts;
    for (const json& event : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      const double start = event["ts"], duration = event["dur"];
      CHECK(duration > 0);
      auto& row = rows[{event["pid"], event["tid"]}];
      REQUIRE(row.count(start) == 0);
      row[start] = start + duration;
      sums[event["name"]] += duration;
      ++counts[event["name"]];
    }
    for (const auto& [row, slices] : rows) {
      double end = 0;
      for (const auto& [from, to] : slices) {
        CHECK(from >= end - 1e-3);
        if (row.second == 0) CHECK(from <= end + 1e-3);  // no gaps between computations and bubbles
        end = to;
      }
      if (row.second == 0) CHECK(end == Approx(timeline.makespan * 1e6));
    }
    const int computations = 4 * 8 * virtual_stages;
    CHECK(counts["forward"] == computations);
    CHECK(counts["input gradient"] == computations);
    CHECK(counts["weight gradient"] == computations);
    // Every chunk but the last sends forward, every chunk but the first sends backward.
    CHECK(counts["send_forward"] == 8 * (4 * virtual_stages - 1));
    CHECK(counts["send_backward"] == 8 * (4 * virtual_stages - 1));
    CHECK(sums["send_forward"] == Approx(1500.0 * counts["send_forward"]));
    CHECK(sums["bubble"] == Approx(timeline.bubble_fraction * 4 * timeline.makespan * 1e6));
  }
}

}  // namespace
}  // namespace trainerd::core
