#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "parallel/grid.h"
#include "parallel/schedule/slots.h"

using namespace trainerd::parallel;

TEST_CASE("a training schedule runs each microbatch forward, then backward, and reduces last", "[schedule]") {
  for (int m = 1; m <= 16; ++m) {
    const auto actions = make_schedule(ScheduleKind::one_f_one_b, 1, m, Pass::train);
    REQUIRE(actions.size() == static_cast<std::size_t>(2 * m + 1));
    std::set<int> forward, backward;
    for (const Action& a : actions) {
      if (a.kind == ActionKind::forward) CHECK(forward.insert(a.microbatch).second);
      if (a.kind == ActionKind::backward) {
        CHECK(forward.count(a.microbatch) == 1);
        CHECK(backward.insert(a.microbatch).second);
      }
    }
    CHECK(backward.size() == static_cast<std::size_t>(m));
    CHECK(actions.back().kind == ActionKind::reduce_grads);
  }
}

TEST_CASE("one stage of 1f1b keeps one microbatch alive", "[schedule]") {
  const auto actions = make_schedule(ScheduleKind::one_f_one_b, 1, 8, Pass::train);
  for (const Lifetime lifetime : {Lifetime::forward_to_backward, Lifetime::forward_to_weight, Lifetime::backward_to_weight})
    CHECK(color_slots(actions, 0, 8, lifetime).slots == 1);
}

TEST_CASE("slots never overlap in time and are as few as microbatches alive at once", "[schedule]") {
  // All forwards, then all backwards, as GPipe does: every microbatch is alive in the middle.
  std::vector<Action> actions;
  for (int m = 0; m < 5; ++m) actions.push_back({ActionKind::forward, 0, m});
  for (int m = 4; m >= 0; --m) actions.push_back({ActionKind::backward, 0, m});
  const SlotTable table = color_slots(actions, 0, 5, Lifetime::forward_to_backward);
  CHECK(table.slots == 5);
  std::vector<int> used = table.slot_of_microbatch;
  std::sort(used.begin(), used.end());
  CHECK(std::unique(used.begin(), used.end()) == used.end());
  CHECK(color_slots(actions, 0, 5, Lifetime::backward_to_weight).slots == 1);
}

TEST_CASE("a forward-only schedule has no gradients", "[schedule]") {
  const auto actions = make_schedule(ScheduleKind::one_f_one_b, 1, 3, Pass::evaluate);
  CHECK(actions.size() == 3);
  CHECK(color_slots(actions, 0, 3, Lifetime::backward_to_weight).slots == 0);
}

TEST_CASE("rank and coordinate are inverse and groups partition the ranks", "[grid]") {
  const ProcessGrid grid({2, 1, 1, 3, 4});
  REQUIRE(grid.ranks() == 24);
  for (std::int64_t r = 0; r < grid.ranks(); ++r) CHECK(grid.rank(grid.coordinate(r)) == r);
  for (const Axis axis : {Axis::tp, Axis::dp, Axis::pp}) {
    std::set<std::vector<std::int64_t>> groups;
    for (std::int64_t r = 0; r < grid.ranks(); ++r) groups.insert(grid.group(r, axis));
    std::set<std::int64_t> all;
    for (const auto& group : groups) {
      CHECK(group.size() == static_cast<std::size_t>(grid.size(axis)));
      all.insert(group.begin(), group.end());
    }
    CHECK(all.size() == 24);
    CHECK(groups.size() * static_cast<std::size_t>(grid.size(axis)) == 24);
  }
  // Megatron's order: tp fastest, then dp, then pp.
  CHECK(grid.group(0, Axis::tp) == std::vector<std::int64_t>{0, 1});
  CHECK(grid.group(0, Axis::dp) == std::vector<std::int64_t>{0, 2, 4});
  CHECK(grid.group(0, Axis::pp) == std::vector<std::int64_t>{0, 6, 12, 18});
}
