#include <algorithm>
#include <catch2/catch.hpp>

#include "parallel/schedule/svg.h"
#include "parallel/schedule/timeline.h"
#include "tests/parallel/published_bubbles.h"

using namespace trainerd::parallel;

namespace {

std::size_t occurrences(const std::string& text, const std::string& word) {
  std::size_t n = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + word.size())) ++n;
  return n;
}

}  // namespace

TEST_CASE("a timeline adds up computations and transfers along the longest path", "[schedule]") {
  const auto lists = make_schedules({ScheduleKind::one_f_one_b, 2, 1, 1, Pass::train});
  const Timeline t =
      timeline(lists, {.forward = 3, .backward_input = 5, .backward_weight = 7, .transfer = 0.5});
  REQUIRE(t.stuck.empty());
  // Forward, transfer, forward, backward, transfer, backward: nothing overlaps with one microbatch.
  CHECK(t.makespan == Approx(3 + 0.5 + 3 + 12 + 0.5 + 12));
  CHECK(t.bubble_fraction == Approx(1 - 30.0 / 62));
  const auto& last = t.ranks[1];
  REQUIRE(last.front().action.kind == ActionKind::recv_forward);
  CHECK(last.front().start == 0);
  CHECK(last.front().end == 3.5);
}

TEST_CASE("a receive that is posted early is awaited by the computation that uses it", "[schedule]") {
  // Rank 1 posts the receive of microbatch 1 before it computes microbatch 0.
  const std::vector<std::vector<Action>> lists{{{ActionKind::forward, 0, 0},
                                                {ActionKind::send_forward, 0, 0, 1},
                                                {ActionKind::forward, 0, 1},
                                                {ActionKind::send_forward, 0, 1, 1}},
                                               {{ActionKind::recv_forward, 1, 0, 0},
                                                {ActionKind::recv_forward, 1, 1, 0},
                                                {ActionKind::forward, 1, 0},
                                                {ActionKind::forward, 1, 1}}};
  const Timeline t = timeline(lists, {.transfer = 0.25});
  REQUIRE(t.stuck.empty());
  CHECK(t.ranks[1][2].start == 1.25);
  CHECK(t.ranks[1][3].start == 2.25);
  CHECK(t.makespan == 3.25);
}

TEST_CASE("a deadlock is found, with the waiting ranks and their operations", "[schedule]") {
  // Each of two ranks receives before it sends.
  const std::vector<std::vector<Action>> crossed{
      {{ActionKind::forward, 0, 0},
       {ActionKind::recv_backward, 0, 0, 1},
       {ActionKind::send_forward, 0, 0, 1},
       {ActionKind::backward, 0, 0}},
      {{ActionKind::recv_forward, 1, 0, 0},
       {ActionKind::forward, 1, 0},
       {ActionKind::backward, 1, 0},
       {ActionKind::send_backward, 1, 0, 0}},
  };
  const Timeline t = timeline(crossed, {});
  REQUIRE(t.stuck.size() == 2);
  CHECK(t.stuck[0].action == crossed[0][1]);
  CHECK(t.stuck[0].waits_for == crossed[1][3]);
  CHECK(t.stuck[0].waits_for_rank == 1);
  CHECK(t.stuck[1].action == crossed[1][0]);
  CHECK(t.stuck[1].waits_for == crossed[0][2]);
  CHECK(describe(t.stuck) ==
        "rank 0 is at recv_backward of chunk 0, microbatch 0 and waits for send_backward of chunk 1, "
        "microbatch 0 of "
        "rank 1\n"
        "rank 1 is at recv_forward of chunk 1, microbatch 0 and waits for send_forward of chunk 0, "
        "microbatch 0 of "
        "rank 0\n");
}

TEST_CASE("a message without a sender is named", "[schedule]") {
  const std::vector<std::vector<Action>> lists{
      {{ActionKind::forward, 0, 0}}, {{ActionKind::recv_forward, 1, 0, 0}, {ActionKind::forward, 1, 0}}};
  const Timeline t = timeline(lists, {});
  REQUIRE(t.stuck.size() == 1);
  CHECK(t.stuck[0].rank == 1);
  CHECK(t.stuck[0].waits_for_rank == -1);
  CHECK(describe(t.stuck).find("which no rank does") != std::string::npos);
}

TEST_CASE("a zero-bubble schedule is faster than 1f1b as its paper says", "[schedule]") {
  const auto makespan = [](ScheduleKind kind) {
    return timeline(make_schedules({kind, 4, 1, 8, Pass::train}), {}).makespan;
  };
  CHECK(makespan(ScheduleKind::one_f_one_b) == 33);
  CHECK(makespan(ScheduleKind::zb_h1) == 27);
}

TEST_CASE("zb-h1 with as many microbatches as stages hides messages as well as all forwards first",
          "[schedule]") {
  // Qi et al., 2024, section 3: their scheduler may run all forwards before the first backward.
  const auto all_forwards_first = [](int stages, int microbatches) {
    std::vector<std::vector<Action>> ranks(static_cast<std::size_t>(stages));
    for (int rank = 0; rank < stages; ++rank) {
      std::vector<Action>& list = ranks[static_cast<std::size_t>(rank)];
      const int late = std::min(rank, microbatches);
      for (int m = 0; m < microbatches; ++m) list.push_back({ActionKind::forward, rank, m});
      for (int m = 0; m < microbatches + late; ++m) {
        if (m < microbatches) list.push_back({ActionKind::backward_input, rank, m});
        if (m >= late) list.push_back({ActionKind::backward_weight, rank, m - late});
      }
    }
    return ranks;
  };
  for (const int stages : {2, 3, 4, 8, 16, 32})
    for (const int microbatches : {stages / 2, stages})
      for (const double transfer : {0.01, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0}) {
        CAPTURE(stages, microbatches, transfer);
        const ActionCosts costs{.transfer = transfer};
        const double all_first = timeline(all_forwards_first(stages, microbatches), costs).makespan;
        const double ours =
            timeline(make_schedules({ScheduleKind::zb_h1, stages, 1, microbatches, Pass::train}), costs)
                .makespan;
        CHECK(ours <= all_first + 1e-9);
        // Messages of up to half a forward cost time only while the pipeline fills and drains.
        if (transfer <= 0.5 && microbatches == stages)
          CHECK(ours == Approx(3 * microbatches + (stages - 1) * (1 + 2 * transfer)));
      }
}

TEST_CASE("the picture of a schedule has a cell for each computation and no script", "[schedule]") {
  const auto lists = make_schedules({ScheduleKind::zb_h1, 4, 1, 8, Pass::train});
  const std::string svg = schedule_svg(timeline(lists, {}), "ZB-H1 <4 stages>");
  CHECK(occurrences(svg, "<g>") == 4 * 8 * 3);
  CHECK(occurrences(svg, "<g>") == occurrences(svg, "</g>"));
  CHECK(occurrences(svg, "class=\"sched-cell\"") == 4 * 8 * 3);
  CHECK(occurrences(svg, ">rank ") == 4);
  CHECK(occurrences(svg, "<script") == 0);
  CHECK(occurrences(svg, "ZB-H1 &lt;4 stages&gt;: bubble 11.1%, makespan 27") == 1);
  for (const char* entry : {">forward<", ">input gradient<", ">weight gradient<", ">bubble<"})
    CHECK(occurrences(svg, entry) == 1);
}

TEST_CASE("messages that take time are drawn below their sender", "[schedule]") {
  const auto lists = make_schedules({ScheduleKind::one_f_one_b, 4, 1, 8, Pass::train});
  const std::string svg = schedule_svg(timeline(lists, {.transfer = 0.5}), "1f1b");
  CHECK(occurrences(svg, ">communication<") == 1);
  CHECK(occurrences(svg, "<title>send_forward of ") == 3 * 8);
  CHECK(occurrences(svg, "<title>send_backward of ") == 3 * 8);
  CHECK(occurrences(svg, "<g>") == 4 * 8 * 2 + 2 * 3 * 8);
  CHECK(occurrences(schedule_svg(timeline(lists, {}), "1f1b"), ">communication<") == 0);
}

TEST_CASE("the picture distinguishes virtual stages", "[schedule]") {
  const auto lists = make_schedules({ScheduleKind::interleaved, 2, 2, 4, Pass::train});
  const std::string svg = schedule_svg(timeline(lists, {}), "interleaved");
  CHECK(occurrences(svg, ">virtual stage 1<") == 1);
  CHECK(occurrences(svg, "<g>") == 2 * 2 * 4 * 2);
}

TEST_CASE("bubbles match the zero-bubble paper's table 5, given its unit times", "[schedule]") {
  for (const trainerd::test::PublishedBubble& row : trainerd::test::zero_bubble_table()) {
    CAPTURE(static_cast<int>(row.shape.kind), row.shape.stages, row.shape.microbatches);
    CHECK(timeline(make_schedules(row.shape), row.costs).bubble_fraction == Approx(row.bubble).margin(0.02));
  }
}
