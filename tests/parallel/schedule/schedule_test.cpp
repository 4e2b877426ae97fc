#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <set>

#include "kernels/base/error.h"
#include "parallel/schedule/slots.h"

using namespace trainerd::parallel;

namespace {

/// A rank's computations in the notation of the papers' figures: F forward, B backward (input gradient if
/// split), W weight gradient, microbatches from 1, a tick for the second virtual stage.
std::string computations(const ScheduleShape& shape, int rank) {
  const std::map<ActionKind, const char*> letters{{ActionKind::forward, "F"},
                                                  {ActionKind::forward_only, "F"},
                                                  {ActionKind::backward, "B"},
                                                  {ActionKind::backward_input, "B"},
                                                  {ActionKind::backward_weight, "W"}};
  std::string out;
  for (const Action& a : make_schedule(shape, rank))
    if (const auto letter = letters.find(a.kind); letter != letters.end())
      out += (out.empty() ? "" : " ") + std::string(letter->second) + std::to_string(a.microbatch + 1) +
             (a.chunk >= shape.stages ? "'" : "");
  return out;
}

/// The slots of a rank with one chunk.
SlotTable slots_of(const std::vector<Action>& actions, const ScheduleShape& shape, Lifetime lifetime) {
  return color_slots(actions, shape, std::vector<int>{0}, lifetime);
}

std::string kinds(const std::vector<Action>& list) {
  std::string out;
  for (const Action& a : list)
    out += (out.empty() ? "" : " ") + std::string(to_string(a.kind)) +
           (a.peer < 0 ? "" : ">" + std::to_string(a.peer));
  return out;
}

/// Every kind, with its number of chunks per rank.
constexpr std::pair<ScheduleKind, int> kKinds[] = {
    {ScheduleKind::gpipe, 1}, {ScheduleKind::one_f_one_b, 1}, {ScheduleKind::interleaved, 2},
    {ScheduleKind::zb_h1, 1}, {ScheduleKind::zb_v, 2},        {ScheduleKind::v_half, 2},
    {ScheduleKind::v_min, 2}};

}  // namespace

TEST_CASE("a rank's schedule equals its list in the schedules of all ranks", "[schedule]") {
  for (const auto& [kind, chunks] : kKinds)
    for (const Pass pass : {Pass::train, Pass::evaluate}) {
      const ScheduleShape shape{kind, 4, chunks, 8, pass};
      const std::vector<std::vector<Action>> all = make_schedules(shape);
      REQUIRE(all.size() == 4);
      for (int rank = 0; rank < 4; ++rank)
        CHECK(make_schedule(shape, rank) == all[static_cast<std::size_t>(rank)]);
    }
}

TEST_CASE("a training schedule runs each microbatch forward, then backward, and reduces last", "[schedule]") {
  for (int m = 1; m <= 16; ++m) {
    const auto actions = make_schedule({ScheduleKind::one_f_one_b, 1, 1, m, Pass::train}, 0);
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

TEST_CASE("schedules match the papers' figures", "[schedule]") {
  // Narayanan et al., SC21, figures 3 and 4: 4 devices, 8 microbatches; interleaved with two chunks per
  // device.
  const ScheduleShape gpipe{ScheduleKind::gpipe, 4, 1, 8, Pass::train};
  CHECK(computations(gpipe, 2) == "F1 F2 F3 F4 F5 F6 F7 F8 B1 B2 B3 B4 B5 B6 B7 B8");
  const ScheduleShape flush{ScheduleKind::one_f_one_b, 4, 1, 8, Pass::train};
  CHECK(computations(flush, 0) == "F1 F2 F3 F4 B1 F5 B2 F6 B3 F7 B4 F8 B5 B6 B7 B8");
  CHECK(computations(flush, 3) == "F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 F8 B8");
  const ScheduleShape interleaved{ScheduleKind::interleaved, 4, 2, 8, Pass::train};
  CHECK(computations(interleaved, 0) ==
        "F1 F2 F3 F4 F1' F2' F3' F4' F5 F6 F7 B1' F8 B2' F5' B3' F6' B4' F7' B1 F8' B2 B3 B4 B5' B6' B7' B8' "
        "B5 B6 "
        "B7 B8");
  CHECK(computations(interleaved, 3) ==
        "F1 F2 F3 F4 F1' B1' F2' B2' F3' B3' F4' B4' F5 B1 F6 B2 F7 B3 F8 B4 F5' B5' F6' B6' F7' B7' F8' B8' "
        "B5 B6 B7 "
        "B8");
  // Qi et al., Zero Bubble Pipeline Parallelism, 2024, figure 2 (ZB-H1): the same sizes.
  const ScheduleShape zero_bubble{ScheduleKind::zb_h1, 4, 1, 8, Pass::train};
  CHECK(computations(zero_bubble, 0) ==
        "F1 F2 F3 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 F8 B5 W5 B6 W6 B7 W7 B8 W8");
  CHECK(computations(zero_bubble, 3) ==
        "F1 B1 F2 B2 F3 B3 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 F8 B8 W5 W6 W7 W8");
}

TEST_CASE("interleaved groups hold at least one microbatch per stage and are as even as possible",
          "[schedule]") {
  const auto groups = [](int stages, int microbatches) {
    return microbatch_groups({ScheduleKind::interleaved, stages, 2, microbatches, Pass::train});
  };
  CHECK(groups(4, 8) == std::vector<int>{4, 4});
  CHECK(groups(4, 3) == std::vector<int>{3});
  CHECK(groups(4, 7) == std::vector<int>{7});
  CHECK(groups(4, 11) == std::vector<int>{6, 5});
  CHECK(groups(4, 14) == std::vector<int>{5, 5, 4});
  const ScheduleShape five{ScheduleKind::interleaved, 2, 2, 5, Pass::train};
  CHECK(computations(five, 0) == "F1 F2 F3 F1' F2' F3' B1' F4 B2' F5 B3' F4' B1 F5' B2 B3 B4' B5' B4 B5");
  CHECK(computations(five, 1) == "F1 F2 F3 F1' B1' F2' B2' F3' B3' F4 B1 F5 B2 F4' B3 F5' B4' B5' B4 B5");
}

TEST_CASE("a steady pair of 1f1b keeps transfers with one neighbour together", "[schedule]") {
  const ScheduleShape shape{ScheduleKind::one_f_one_b, 3, 1, 2, Pass::train};
  CHECK(kinds(make_schedule(shape, 0)) ==
        "forward send_forward>1 forward send_forward>1 recv_backward>1 backward recv_backward>1 backward "
        "reduce_grads");
  CHECK(
      kinds(make_schedule(shape, 1)) ==
      "recv_forward>0 forward send_forward>2 recv_forward>0 forward send_forward>2 recv_backward>2 backward "
      "send_backward>0 recv_backward>2 backward send_backward>0 reduce_grads");
  CHECK(kinds(make_schedule(shape, 2)) ==
        "recv_forward>1 forward backward send_backward>1 recv_forward>1 forward backward send_backward>1 "
        "reduce_grads");
}

TEST_CASE("a receive of zb-h1 is posted before the weight gradients that come before its use", "[schedule]") {
  const ScheduleShape shape{ScheduleKind::zb_h1, 2, 1, 3, Pass::train};
  CHECK(kinds(make_schedule(shape, 0)) ==
        "forward send_forward>1 forward send_forward>1 recv_backward>1 backward_input backward_weight "
        "forward send_forward>1 "
        "recv_backward>1 backward_input recv_backward>1 backward_weight backward_input backward_weight "
        "reduce_grads");
  CHECK(
      kinds(make_schedule(shape, 1)) ==
      "recv_forward>0 forward backward_input send_backward>0 recv_forward>0 forward backward_input "
      "send_backward>0 recv_forward>0 "
      "backward_weight forward backward_input send_backward>0 backward_weight backward_weight reduce_grads");
}

TEST_CASE("adjacent transfers of ranks with one chunk form one group, those of several are separate",
          "[schedule]") {
  for (const auto& [kind, chunks] : kKinds) {
    const ScheduleShape shape{kind, 4, chunks, 8, Pass::train};
    for (const auto& list : make_schedules(shape))
      for (std::size_t i = 1; i < list.size(); ++i) {
        const bool neighbours = list[i - 1].peer >= 0 && list[i].peer >= 0;
        CHECK(list[i].joins == (neighbours && chunks == 1));
      }
  }
}

TEST_CASE("a ring posts receives early, as far as there are slots", "[schedule]") {
  const ScheduleShape shape{ScheduleKind::interleaved, 4, 2, 8, Pass::train};
  for (const auto& list : make_schedules(shape)) {
    int early = 0, receives = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!is_receive(list[i].kind)) continue;
      ++receives;
      const ActionKind user =
          list[i].kind == ActionKind::recv_forward ? ActionKind::forward : ActionKind::backward;
      std::size_t next = i + 1;
      while (list[next].peer >= 0) ++next;
      early += list[next] != Action{user, list[i].chunk, list[i].microbatch};
    }
    CHECK(2 * early > receives);
  }
}

TEST_CASE("zb-v turns on its last rank, which passes its results to itself", "[schedule]") {
  const ScheduleShape shape{ScheduleKind::zb_v, 2, 2, 2, Pass::train};
  CHECK(shape.rank_of(0) == 0);
  CHECK(shape.rank_of(1) == 1);
  CHECK(shape.rank_of(2) == 1);
  CHECK(shape.rank_of(3) == 0);
  CHECK(kinds(make_schedule(shape, 1)) ==
        "recv_forward>0 forward recv_forward>0 forward send_forward>0 forward forward send_forward>0 "
        "recv_backward>0 backward_input backward_input send_backward>0 recv_backward>0 backward_weight "
        "backward_input backward_input send_backward>0 backward_weight reduce_grads backward_weight "
        "backward_weight reduce_grads");
}

TEST_CASE("chunks of one rank exchange nothing", "[schedule]") {
  const auto list = make_schedule({ScheduleKind::interleaved, 1, 2, 1, Pass::train}, 0);
  CHECK(kinds(list) == "forward forward backward reduce_grads backward reduce_grads");
  CHECK(list[2].chunk == 1);
  CHECK(list[3].chunk == 1);
}

TEST_CASE("one stage of 1f1b keeps one microbatch alive", "[schedule]") {
  const ScheduleShape shape{ScheduleKind::one_f_one_b, 1, 1, 8, Pass::train};
  for (const Lifetime lifetime :
       {Lifetime::forward_to_backward, Lifetime::forward_to_weight, Lifetime::backward_to_weight})
    CHECK(slots_of(make_schedule(shape, 0), shape, lifetime).slots.at(0) == 1);
}

TEST_CASE("split weight gradients keep their inputs longer, and the rest as long as 1f1b", "[schedule]") {
  const ScheduleShape shape{ScheduleKind::zb_h1, 4, 1, 8, Pass::train};
  for (int rank = 0; rank < 4; ++rank) {
    const auto list = make_schedule(shape, rank);
    CHECK(slots_of(list, shape, Lifetime::forward_to_backward).slots.at(0) == 4 - rank);
    CHECK(slots_of(list, shape, Lifetime::forward_to_weight).slots.at(0) == 4);
    CHECK(slots_of(list, shape, Lifetime::backward_to_weight).slots.at(0) == rank + 1);
  }
}

TEST_CASE("slots never overlap in time and are as few as live microbatches", "[schedule]") {
  // All forwards, then all backwards in reverse order: every microbatch is alive in the middle.
  std::vector<Action> actions;
  for (int m = 0; m < 5; ++m) actions.push_back({ActionKind::forward, 0, m});
  for (int m = 4; m >= 0; --m) actions.push_back({ActionKind::backward, 0, m});
  const ScheduleShape shape{ScheduleKind::gpipe, 1, 1, 5, Pass::train};
  const SlotTable table = slots_of(actions, shape, Lifetime::forward_to_backward);
  CHECK(table.slots.at(0) == 5);
  std::vector<int> used = table.slot_of_microbatch.at(0);
  std::sort(used.begin(), used.end());
  CHECK(std::unique(used.begin(), used.end()) == used.end());
  CHECK(slots_of(actions, shape, Lifetime::backward_to_weight).slots.at(0) == 1);
}

TEST_CASE("a forward-only schedule has no gradients", "[schedule]") {
  const ScheduleShape shape{ScheduleKind::one_f_one_b, 1, 1, 3, Pass::evaluate};
  const auto actions = make_schedule(shape, 0);
  CHECK(actions.size() == 3);
  CHECK(slots_of(actions, shape, Lifetime::forward_to_backward).slots.at(0) == 1);
  CHECK(slots_of(actions, shape, Lifetime::backward_to_weight).slots.at(0) == 0);
}

TEST_CASE(
    "chunks of a rank share as many slots as activations are alive at once: 143 of 16 stages with 8 chunks, "
    "not 192",
    "[schedule]") {
  const ScheduleShape shape{ScheduleKind::interleaved, 16, 8, 64, Pass::train};
  const auto list = make_schedule(shape, 0);
  const auto slots = [&](const std::vector<int>& pool_of_chunk) {
    const SlotTable table = color_slots(list, shape, pool_of_chunk, Lifetime::forward_to_weight);
    return std::accumulate(table.slots.begin(), table.slots.end(), 0);
  };
  CHECK(slots({0, 1, 2, 3, 4, 5, 6, 7}) == 192);
  CHECK(slots(std::vector<int>(8, 0)) == 143);  // p v + p - 1, Korthikanti et al., 2022
  const std::vector<std::int64_t> alike(8, 1);
  CHECK(slots(slot_pools(shape, 0, alike)) == 143);
}

TEST_CASE("chunks of different sizes share slots only if that needs no more memory", "[schedule]") {
  const ScheduleShape shape{ScheduleKind::interleaved, 16, 8, 64, Pass::train};
  const auto pools = [&](const std::vector<std::int64_t>& sizes) { return slot_pools(shape, 0, sizes); };
  // Separately the first chunk has 32 slots and the others 112. 143 slots of 34 bytes are less than 112 of 34
  // plus 32 of 33, but more than 112 of 17 plus 32 of 1.
  CHECK(pools({33, 34, 34, 34, 34, 34, 34, 34}) == std::vector<int>(8, 0));
  CHECK(pools({1, 17, 17, 17, 17, 17, 17, 17}) == std::vector<int>{1, 0, 0, 0, 0, 0, 0, 0});
  CHECK(pools({1, 17, 17, 17, 17, 17, 17, 1}) == std::vector<int>{1, 0, 0, 0, 0, 0, 0, 1});
  for (const std::vector<std::int64_t>& sizes :
       std::vector<std::vector<std::int64_t>>{{16, 17, 17, 17, 17, 17, 17, 17},
                                              {1, 17, 17, 17, 17, 17, 17, 17},
                                              {2, 2, 2, 2, 3, 3, 3, 3},
                                              {0, 1, 2, 3, 4, 5, 6, 7}})
    for (int rank = 0; rank < shape.stages; ++rank) {
      const auto list = make_schedule(shape, rank);
      const auto memory = [&](const std::vector<int>& pool_of_chunk) {
        const SlotTable table = color_slots(list, shape, pool_of_chunk, Lifetime::forward_to_weight);
        std::int64_t sum = 0;
        for (std::size_t pool = 0; pool < table.slots.size(); ++pool) {
          std::int64_t largest = 0;
          for (std::size_t chunk = 0; chunk < sizes.size(); ++chunk)
            if (pool_of_chunk[chunk] == static_cast<int>(pool)) largest = std::max(largest, sizes[chunk]);
          sum += largest * table.slots[pool];
        }
        return sum;
      };
      CHECK(memory(slot_pools(shape, rank, sizes)) <= memory({0, 1, 2, 3, 4, 5, 6, 7}));
      CHECK(memory(slot_pools(shape, rank, sizes)) <= memory(std::vector<int>(8, 0)));
    }
}

TEST_CASE("a schedule that does not exist is refused with the nearest that does", "[schedule]") {
  const auto problem = [](ScheduleKind kind, int stages, int chunks, int microbatches) {
    return schedule_problem({kind, stages, chunks, microbatches, Pass::train});
  };
  CHECK(problem(ScheduleKind::interleaved, 4, 2, 8) == "");
  CHECK(problem(ScheduleKind::interleaved, 4, 2, 6) == "");
  CHECK(problem(ScheduleKind::interleaved, 4, 2, 1) == "");
  CHECK(problem(ScheduleKind::interleaved, 4, 1, 6) == "");
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1}) {
    CHECK(problem(kind, 4, 1, 6) == "");
    CHECK(problem(kind, 4, 2, 8).find("schedule: interleaved") != std::string::npos);
  }
  CHECK(problem(ScheduleKind::zb_v, 4, 2, 1) == "");
  CHECK(problem(ScheduleKind::zb_v, 1, 1, 1) == "");
  CHECK(problem(ScheduleKind::zb_v, 4, 1, 8).find("set virtual_stages to 2") != std::string::npos);
  CHECK(problem(ScheduleKind::zb_v, 4, 3, 8).find("set virtual_stages to 2") != std::string::npos);
  CHECK(problem(ScheduleKind::v_half, 4, 2, 1) == "");
  CHECK(problem(ScheduleKind::v_min, 4, 1, 8).find("v-min has two chunks on each stage") !=
        std::string::npos);
  CHECK(problem(ScheduleKind::gpipe, 4, 1, 0).find("at least one microbatch") != std::string::npos);
  CHECK(problem(ScheduleKind::gpipe, 0, 1, 1).find("at least one stage") != std::string::npos);
  CHECK(problem(ScheduleKind::interleaved, 2, 0, 2).find("at least one chunk") != std::string::npos);
  CHECK_THROWS_AS(make_schedule({ScheduleKind::interleaved, 4, 2, 0, Pass::train}, 0),
                  trainerd::base::SpecError);
}
