#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "parallel/layout/layout.h"
#include "parallel/schedule/slots.h"
#include "parallel/schedule/timeline.h"
#include "tests/full.h"
#include "tests/parallel/schedule/schedule_run.h"

using namespace trainerd::parallel;
using trainerd::test::ScheduleRun;
using trainerd::test::Sends;

namespace {

using Lists = std::vector<std::vector<Action>>;

std::string name(const ScheduleShape& s) {
  return std::string(to_string(s.kind)) + (s.pass == Pass::train ? " train" : " evaluate") + " p" +
         std::to_string(s.stages) + " v" + std::to_string(s.virtual_stages) + " m" +
         std::to_string(s.microbatches);
}

/// Every shape with a schedule and 1-16 stages, 1-64 microbatches and 1-4 chunks per rank. Except in full
/// runs, an eighth of those with more than 16 microbatches, a different one for each number of stages.
void for_each_shape(Pass pass, const std::function<void(const ScheduleShape&, const Lists&)>& body) {
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1,
        ScheduleKind::zb_v, ScheduleKind::v_half, ScheduleKind::v_min, ScheduleKind::dualpipe_v})
    for (int stages = 1; stages <= 16; ++stages)
      for (int chunks = 1; chunks <= 4; ++chunks)
        for (int microbatches = 1; microbatches <= 64; ++microbatches) {
          ScheduleShape shape{kind, stages, chunks, microbatches, pass};
          if (microbatches > 16 && (microbatches + stages) % 8 != 0 && !trainerd::test::runs_full()) continue;
          if (microbatches > 8 && !trainerd::test::in_slice(static_cast<std::size_t>(stages + chunks), 4))
            continue;
          if (!schedule_problem(shape).empty()) continue;
          body(shape, make_schedules(shape));
          // Only where it makes a difference; of the larger shapes every fourth.
          if (stages == 1 || !(shape.several_chunks() || kind == ScheduleKind::zb_h1) ||
              (microbatches > 16 && (microbatches + stages) % 4 != 0))
            continue;
          shape.early_receives = false;
          body(shape, make_schedules(shape));
        }
}

/// A CHECK per action is too slow: one CHECK reports the first broken shape.
class FirstProblem {
 public:
  void expect(bool holds, const ScheduleShape& shape, const std::string& what) {
    ++checked_;
    if (!holds && problem_.empty()) problem_ = name(shape) + ": " + what;
  }
  ~FirstProblem() {
    CHECK(problem_ == "");
    CHECK(checked_ > 1000);
  }

 private:
  std::string problem_;
  int checked_ = 0;
};

int count(const std::vector<Action>& list, ActionKind kind) {
  return static_cast<int>(
      std::count_if(list.begin(), list.end(), [kind](const Action& a) { return a.kind == kind; }));
}

/// Largest number of microbatches, over all chunks of a rank, between a forward and its end (one of `ends`).
int peak_live(const std::vector<Action>& list, const std::vector<ActionKind>& ends) {
  int live = 0, peak = 0;
  for (const Action& a : list) {
    if (a.kind == ActionKind::forward) peak = std::max(peak, ++live);
    if (std::find(ends.begin(), ends.end(), a.kind) != ends.end()) --live;
  }
  return peak;
}

const std::vector<ActionKind> kToWeight{ActionKind::backward, ActionKind::backward_weight};
const std::vector<ActionKind> kToBackward{ActionKind::backward, ActionKind::backward_input};

}  // namespace

TEST_CASE("every action of a schedule runs once, after its inputs, in any order of arrival", "[schedule]") {
  FirstProblem problem;
  std::uint32_t seed = 1;
  for (const Pass pass : {Pass::train, Pass::evaluate})
    for_each_shape(pass, [&](const ScheduleShape& shape, const Lists& lists) {
      for (const Sends sends : {Sends::buffered, Sends::rendezvous}) {
        ScheduleRun run(lists, shape.chunks(), shape.microbatches, sends, goes_back(shape.kind));
        const std::string broken = run.run(seed++);
        problem.expect(broken.empty(), shape, broken);
      }
      // Each action runs once: the run refuses a repetition, so the counts prove that none is missing.
      const int v = shape.virtual_stages, all = v * shape.microbatches;
      for (int rank = 0; rank < shape.stages; ++rank) {
        const std::vector<Action>& list = lists[static_cast<std::size_t>(rank)];
        const bool train = pass == Pass::train, folded = goes_back(shape.kind);
        const bool split = train && splits_backward(shape.kind);
        const int late = train ? count(list, ActionKind::backward_weight) : 0;
        // A chunk at an end of the model, or where a V turns, has one neighbour less on another rank.
        const int first = rank == 0 || (folded && rank + 1 == shape.stages) ? 1 : 0;
        const int last = rank + 1 == shape.stages || (folded && rank == 0) ? 1 : 0;
        const int from_before = shape.stages == 1 ? 0 : (v - first) * shape.microbatches;
        const int to_behind = shape.stages == 1 ? 0 : (v - last) * shape.microbatches;
        bool counts = count(list, ActionKind::forward) == (train ? all : 0) &&
                      count(list, ActionKind::forward_only) == (train ? 0 : all) &&
                      count(list, ActionKind::backward) == (train ? all - late : 0) &&
                      count(list, ActionKind::backward_input) == late && (!split || late == all) &&
                      (shape.kind == ScheduleKind::dualpipe_v || split || late == 0) &&
                      count(list, ActionKind::reduce_grads) == (train ? v : 0) &&
                      count(list, ActionKind::recv_forward) == from_before &&
                      count(list, ActionKind::send_forward) == to_behind &&
                      count(list, ActionKind::send_backward) == (train ? from_before : 0) &&
                      count(list, ActionKind::recv_backward) == (train ? to_behind : 0);
        problem.expect(counts, shape, "wrong number of actions on rank " + std::to_string(rank));
      }
    });
}

TEST_CASE("computations that take turns need nothing of each other", "[schedule]") {
  FirstProblem problem;
  std::uint32_t seed = 1;
  int pairs = 0;
  for_each_shape(Pass::train, [&](const ScheduleShape& shape, const Lists& lists) {
    Lists swapped = lists;
    for (int rank = 0; rank < shape.stages; ++rank) {
      std::vector<Action>& list = swapped[static_cast<std::size_t>(rank)];
      for (std::size_t i = 1; i < list.size(); ++i) {
        const Action &before = lists[static_cast<std::size_t>(rank)][i - 1], &action = list[i];
        if (!take_turns(before, action)) continue;
        ++pairs;
        problem.expect(before.kind == ActionKind::forward && action.kind == ActionKind::backward &&
                           before.chunk != action.chunk,
                       shape, describe(action) + " does not take turns with a forward of the other chunk");
        std::swap(list[i - 1], list[i]);
      }
    }
    ScheduleRun run(swapped, shape.chunks(), shape.microbatches, Sends::buffered, goes_back(shape.kind));
    const std::string broken = run.run(seed++);
    problem.expect(broken.empty(), shape, broken);
    // In the steady state all do: all but about 3 p of m microbatches' forwards of each chunk.
    if (shape.kind != ScheduleKind::dualpipe_v || shape.stages == 1) return;
    for (int rank = 0; rank < shape.stages; ++rank) {
      const auto& list = lists[static_cast<std::size_t>(rank)];
      int turns = 0;
      for (std::size_t i = 1; i < list.size(); ++i) turns += take_turns(list[i - 1], list[i]) ? 1 : 0;
      problem.expect(turns >= 2 * (shape.microbatches - 2 * shape.stages) + shape.stages - 1, shape,
                     "too few turns on rank " + std::to_string(rank) + ": " + std::to_string(turns));
    }
  });
  CHECK(pairs > 1000);
}

TEST_CASE("each chunk sums its gradients in rising order of microbatches and reduces them at once",
          "[schedule]") {
  FirstProblem problem;
  for_each_shape(Pass::train, [&](const ScheduleShape& shape, const Lists& lists) {
    for (const auto& list : lists) {
      std::vector<int> next(static_cast<std::size_t>(shape.chunks()), 0);
      for (std::size_t i = 0; i < list.size(); ++i) {
        const Action& a = list[i];
        if (a.kind != ActionKind::backward && a.kind != ActionKind::backward_weight) continue;
        problem.expect(next[static_cast<std::size_t>(a.chunk)]++ == a.microbatch, shape,
                       describe(a) + " out of order");
        if (a.microbatch + 1 != shape.microbatches) continue;
        // Nothing is computed between the last gradient and the reduction.
        std::size_t j = i + 1;
        while (j < list.size() && (is_send(list[j].kind) || is_receive(list[j].kind))) ++j;
        problem.expect(
            j < list.size() && list[j].kind == ActionKind::reduce_grads && list[j].chunk == a.chunk, shape,
            "no reduction behind " + describe(a));
      }
      problem.expect(list.back().kind == ActionKind::reduce_grads, shape, "does not end with a reduction");
    }
  });
}

TEST_CASE("the number of live activations is as published", "[schedule]") {
  FirstProblem problem;
  for_each_shape(Pass::train, [&](const ScheduleShape& shape, const Lists& lists) {
    const int p = shape.stages, v = shape.virtual_stages, m = shape.microbatches;
    for (int rank = 0; rank < p; ++rank) {
      const auto& list = lists[static_cast<std::size_t>(rank)];
      const int live = peak_live(list, kToWeight);
      const std::string found = "rank " + std::to_string(rank) + " holds " + std::to_string(live);
      if (shape.kind == ScheduleKind::gpipe) problem.expect(live == m, shape, found);
      if (shape.kind == ScheduleKind::one_f_one_b)
        problem.expect(live == std::min(m, p - rank), shape, found);
      if (shape.kind == ScheduleKind::zb_h1) {
        problem.expect(live <= std::min(m, p), shape, found);
        const int warmup = m > p ? p - rank - 1 : 2 * (p - rank - 1);
        problem.expect(peak_live(list, kToBackward) == std::min(m, warmup + 1), shape,
                       found + " to backward_input");
      }
      // Korthikanti et al., Reducing Activation Recomputation, 2022, section 4.2.3: 1 + (p - 1) / (p v) times
      // the whole model's activations on the first rank, which has p v chunks here. A first group larger than
      // p adds its excess for all chunks but the last.
      if (shape.kind == ScheduleKind::interleaved && v > 1) {
        const int groups = std::max(1, m / p), first = (m + groups - 1) / groups;
        const int most = std::min(v * m, p * v + p - 1 + (v - 1) * std::max(0, first - p));
        problem.expect(live <= most, shape, found);
        if (rank == 0) problem.expect(live == most, shape, found);
      }
      if (shape.kind == ScheduleKind::interleaved && v == 1)
        problem.expect(live == std::min(m, p - rank), shape, found);
      // Qi et al., 2024, section 6: no more than the first rank of 1F1B, p microbatches of two chunks.
      if (shape.kind == ScheduleKind::zb_v && p > 1)
        problem.expect(live <= std::min(2 * m, 2 * p), shape, found);
      // Qi et al., 2024, arXiv 2405.15362: about a half and a third of that.
      if (shape.kind == ScheduleKind::v_half && p > 1)
        problem.expect(live <= std::min(2 * m, p + 2), shape, found);
      if (shape.kind == ScheduleKind::v_min && p > 1)
        problem.expect(live <= std::min(2 * m, 2 * ((p + 2) / 3) + 2), shape, found);
      // DeepSeek-V3's report, table 2: one stage's more than 1F1B's p where a stage has two of these chunks;
      // a chunk less here, with one copy of the parameters.
      if (shape.kind == ScheduleKind::dualpipe_v && p > 1)
        problem.expect(live <= std::min(2 * m, 2 * p + 1), shape, found);
    }
  });
}

TEST_CASE("there are as many slots as live activations, and none is shared while in use", "[schedule]") {
  FirstProblem problem;
  for_each_shape(Pass::train, [&](const ScheduleShape& shape, const Lists& lists) {
    if (shape.microbatches > 24) return;
    const auto chunks = static_cast<std::size_t>(shape.virtual_stages);
    std::vector<int> apart(chunks), halves(chunks);
    std::iota(apart.begin(), apart.end(), 0);
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) halves[chunk] = static_cast<int>(chunk % 2);
    for (const std::vector<int>& pool_of_chunk : {apart, halves, std::vector<int>(chunks, 0)})
      for (const auto& list : lists)
        for (const Lifetime lifetime :
             {Lifetime::forward_to_backward, Lifetime::forward_to_weight, Lifetime::backward_to_weight}) {
          const SlotTable table = color_slots(list, shape, pool_of_chunk, lifetime);
          const std::size_t pools = table.slots.size();
          std::vector<std::map<int, std::pair<int, int>>> holder(
              pools);  // per slot in use: chunk, microbatch
          std::vector<std::size_t> peak(pools, 0);
          for (const Action& a : list) {
            const bool input = a.kind == ActionKind::backward || a.kind == ActionKind::backward_input;
            const bool weight = a.kind == ActionKind::backward || a.kind == ActionKind::backward_weight;
            const auto chunk = static_cast<std::size_t>(a.chunk / shape.stages);
            const auto pool = static_cast<std::size_t>(pool_of_chunk[chunk]);
            const int slot = table.slot_of_microbatch[chunk][static_cast<std::size_t>(a.microbatch)];
            if (lifetime == Lifetime::backward_to_weight ? input : a.kind == ActionKind::forward) {
              problem.expect(holder[pool].emplace(slot, std::pair(a.chunk, a.microbatch)).second, shape,
                             "a slot in use is given away");
              peak[pool] = std::max(peak[pool], holder[pool].size());
            }
            if (lifetime == Lifetime::forward_to_backward ? input : weight) {
              problem.expect(holder[pool][slot] == std::pair(a.chunk, a.microbatch), shape,
                             "a slot changed hands");
              holder[pool].erase(slot);
            }
          }
          for (std::size_t pool = 0; pool < pools; ++pool)
            problem.expect(peak[pool] == static_cast<std::size_t>(table.slots[pool]), shape,
                           "more slots than are alive at once");
        }
  });
}

TEST_CASE("bubbles at unit costs are as published", "[schedule]") {
  FirstProblem problem;
  for_each_shape(Pass::train, [&](const ScheduleShape& shape, const Lists& lists) {
    const Timeline unit = timeline(lists, {});
    const double p = shape.stages, v = shape.virtual_stages, m = shape.microbatches;
    const double flush = (p - 1) / (v * m + p - 1);        // GPipe, PipeDream-flush, Narayanan et al., SC21
    const double zero_bubble = (p - 1) / (3 * m + p - 1);  // Qi et al., 2024: (p - 1)(F + B - W)
    problem.expect(unit.stuck.empty(), shape, describe(unit.stuck));
    const std::string found = "bubble " + std::to_string(unit.bubble_fraction);
    if (shape.kind == ScheduleKind::zb_v && p > 1) {
      // Qi et al., 2024, section 6: no rank waits between its first and its last computation, so only the
      // last rank's wait for its first input remains. Fewer microbatches than stages cannot fill the way of
      // the first one forth and back.
      const double full = 6 * m + p - 1, way = 4 * p + m;
      if (m >= p) problem.expect(std::abs(unit.makespan - full) < 1e-9, shape, found);
      else
        problem.expect(unit.makespan >= std::max(full, way) - 1e-9 && unit.makespan < way + 2 * m, shape,
                       found);
    } else if (shape.kind == ScheduleKind::dualpipe_v && p > 1) {
      // The same table: (p - 1) (F&B + B - 3 W) for p ranks of two chunks, here with F&B = 3, B = 2, W = 1.
      // Fewer microbatches cannot fill the way forth and back.
      if (m >= 2 * p) problem.expect(std::abs(unit.makespan - (6 * m + 2 * (p - 1))) < 1e-9, shape, found);
      else problem.expect(unit.makespan <= 6 * m + 5 * (p - 1) + 1e-9, shape, found);
    } else if (goes_back(shape.kind) && p > 1) {
      // Half, and two thirds, of the waits of 1F1B, whose bubble is 6 (p - 1) of these units; with two stages
      // one unit more.
      const double wait = shape.kind == ScheduleKind::v_half ? std::max(3 * p - 5, 2.0) : 4 * p - 5,
                   few = 4 * p + 4 * m;
      problem.expect(
          m >= p ? unit.makespan <= 6 * m + wait + 1e-9 : unit.makespan <= std::max(6 * m + wait, few) + 1e-9,
          shape, found + " makespan " + std::to_string(unit.makespan));
    } else if (v > 1 && m < p) {
      // The first microbatch passes all chunks, then the others follow.
      problem.expect(std::abs(unit.makespan - (3 * p * v + 3 * (m - 1))) < 1e-9, shape, found);
    } else if (!splits_backward(shape.kind)) {
      problem.expect(std::abs(unit.bubble_fraction - flush) < 1e-12, shape, found);
    } else if (m >= p) {
      problem.expect(std::abs(unit.bubble_fraction - zero_bubble) < 1e-12, shape, found);
    } else {
      problem.expect(unit.bubble_fraction <= flush + 1e-12, shape, found);
    }
  });
}

TEST_CASE("few received messages wait, in slots that all chunks of a rank share", "[schedule]") {
  FirstProblem problem;
  for_each_shape(Pass::train, [&](const ScheduleShape& shape, const Lists& lists) {
    for (int rank = 0; rank < shape.stages && shape.stages > 1; ++rank) {
      const auto& list = lists[static_cast<std::size_t>(rank)];
      const int inputs = color_receives(list, shape, ActionKind::recv_forward).slots.at(0);
      const int grads = color_receives(list, shape, ActionKind::recv_backward).slots.at(0);
      // Counts if each receiving chunk had its own slot.
      const bool folded = goes_back(shape.kind), first = rank == 0, last = rank + 1 == shape.stages;
      const int to_receive = shape.virtual_stages - (first ? 1 : 0);
      const int to_receive_back = shape.virtual_stages - (last ? 1 : 0);
      const int back = rank + 1 == shape.stages ? shape.stages / 3 + 1 : 1;
      // Microbatches of a group beyond the number of stages come back before their turn.
      const int early =
          shape.virtual_stages > 1 ? std::max(0, microbatch_groups(shape).front() - shape.stages) : 0;
      // While a V fills, its last rank forwards at half the rate of those before it.
      const int most_inputs = folded ? 3 : std::min(2, to_receive) + early;
      const int most_grads = folded ? 2 : std::max(back, std::min(2, to_receive_back)) + early;
      problem.expect(inputs <= std::max(0, most_inputs), shape, std::to_string(inputs) + " inputs wait");
      problem.expect(grads <= most_grads, shape, std::to_string(grads) + " gradients wait");
    }
  });
}
