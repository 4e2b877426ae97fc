// The replay against closed forms of pipeline schedules and against the schedules' timelines.

#include <array>
#include <catch2/catch.hpp>
#include <vector>

#include "core/plan/replay/replay.h"
#include "parallel/schedule/timeline.h"
#include "tests/parallel/published_bubbles.h"

using namespace trainerd;
using parallel::ActionKind;
using parallel::ScheduleKind;

namespace {

/// Adds the missing segments of a step, which do nothing.
void complete(core::rank::RankRecord& record, const parallel::ScheduleShape& shape) {
  for (const core::rank::ActionCounts& counts : core::rank::action_counts(shape))
    for (const auto& [key, count] : counts) record.actions.try_emplace(key);
}

/// A record with one operator per action, whose FLOPs are its seconds.
core::rank::RankRecord record_of(const parallel::ScheduleShape& shape, const parallel::ActionCosts& costs) {
  core::rank::RankRecord record;
  for (const ActionKind kind :
       {ActionKind::forward, ActionKind::backward, ActionKind::backward_input, ActionKind::backward_weight}) {
    record.ops.push_back({kernels::Operator::add, {}, {costs.of(kind), 0}});
    const auto index = static_cast<std::int32_t>(record.ops.size()) - 1;
    for (int chunk = 0; chunk < shape.virtual_stages; ++chunk)
      for (const core::rank::MicrobatchRole turn :
           {core::rank::MicrobatchRole::first, core::rank::MicrobatchRole::middle,
            core::rank::MicrobatchRole::last})
        record.actions[{chunk, kind, turn}] = {{core::rank::RecordedEvent::Kind::op, index, 0}};
  }
  complete(record, shape);
  for (auto& [key, segment] : record.actions)
    if (key.other)  // the operators of both
      segment = {{core::rank::RecordedEvent::Kind::op, 0, 0}, {core::rank::RecordedEvent::Kind::op, 1, 0}};
  return record;
}

core::plan::ReplayInput input_of(const parallel::ScheduleShape& shape, const core::rank::RankRecord& record,
                                 double message) {
  core::plan::ReplayInput input;
  input.schedule = shape;
  input.records.assign(static_cast<std::size_t>(shape.stages), &record);
  input.op_seconds = [](const core::rank::RecordedOp& op) { return op.cost.flops; };
  input.collective_cost = [](std::int64_t, const core::rank::RecordedCollective& c,
                             const core::rank::RankRecord&) {
    return core::plan::TransferCost{.bandwidth = static_cast<double>(c.bytes)};
  };
  input.message_cost = [message](int, int) { return core::plan::TransferCost{.bandwidth = message}; };
  return input;
}

enum class Messages { in_order, copied };

core::plan::Replay run(const parallel::ScheduleShape& shape, const parallel::ActionCosts& costs,
                       Messages messages = Messages::in_order) {
  core::rank::RankRecord record = record_of(shape, costs);
  // Ranks end a step together because of the sum of the gradient norm.
  record.groups = {parallel::Group::world};
  record.collectives = {{0, parallel::OpKind::all_reduce, "norm", 0, false}};
  record.after = {{core::rank::RecordedEvent::Kind::issue, 0, 0},
                  {core::rank::RecordedEvent::Kind::wait, 0, 0}};
  core::plan::ReplayInput input = input_of(shape, record, costs.transfer);
  input.messages_in_order = messages == Messages::in_order;
  return core::plan::replay(input);
}

}  // namespace

TEST_CASE("the bubble of 1F1B is (p - 1) / (m + p - 1), interleaved (p - 1) / (v m + p - 1)", "[replay]") {
  for (const int p : {2, 4, 8})
    for (const int m : {8, 16, 32}) {
      CAPTURE(p, m);
      const double ideal = 3.0 * m;
      const core::plan::Replay plain =
          run({ScheduleKind::one_f_one_b, p, 1, m, parallel::Pass::train}, {1, 1, 1, 0});
      CHECK(plain.bubble == Approx((p - 1.0) / (m + p - 1)));
      CHECK(plain.step_seconds == Approx(ideal + 3 * (p - 1)));
      // Chunks take half the time each.
      const core::plan::Replay two =
          run({ScheduleKind::interleaved, p, 2, m, parallel::Pass::train}, {0.5, 0.5, 0.5, 0});
      CHECK(two.bubble == Approx((p - 1.0) / (2 * m + p - 1)));
    }
}

TEST_CASE("every schedule takes as long as its timeline says if messages are copied or take no time",
          "[replay]") {
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1,
        ScheduleKind::zb_v, ScheduleKind::v_half, ScheduleKind::v_min, ScheduleKind::dualpipe_v})
    for (const int p : {1, 3, 4})
      for (const int m : {12, 24})
        for (const double backward_weight : {1.0, 0.7})
          for (const double message : {0.0, 0.1, 0.4}) {
            const bool several = kind == ScheduleKind::interleaved || parallel::goes_back(kind);
            const int v = several && p > 1 ? 2 : 1;
            const parallel::ScheduleShape shape{kind, p, v, m, parallel::Pass::train};
            const parallel::ActionCosts costs{1, 1.3, backward_weight, message};
            CAPTURE(static_cast<int>(kind), p, m, backward_weight, message);
            const double makespan = parallel::timeline(parallel::make_schedules(shape), costs).makespan;
            CHECK(run(shape, costs, Messages::copied).step_seconds == Approx(makespan));
            if (message > 0) continue;
            const double in_order = run(shape, costs, Messages::in_order).step_seconds;
            if (parallel::goes_back(kind) && p > 1) {
              // While a V fills, a message can be behind another one whose receiver still computes a forward.
              CHECK(in_order >= makespan - 1e-9);
              // With v-half and v-min in every turn.
              CHECK(in_order <=
                    (kind == ScheduleKind::zb_v ? makespan + costs.forward : 1.05 * makespan) + 1e-9);
            } else {
              CHECK(in_order == Approx(makespan));
            }
          }
}

TEST_CASE("bubbles match the zero-bubble paper's table 5 in every mode of messages", "[replay]") {
  for (const test::PublishedBubble& row : test::zero_bubble_table())
    for (const Messages messages : {Messages::in_order, Messages::copied}) {
      CAPTURE(static_cast<int>(row.shape.kind), row.shape.stages, row.shape.microbatches,
              static_cast<int>(messages));
      CHECK(run(row.shape, row.costs, messages).bubble == Approx(row.bubble).margin(0.02));
    }
}

TEST_CASE("an ordered message starts when both ends have reached it, a copied one when it is sent",
          "[replay]") {
  // GPipe on two ranks: each posts its next receive when it has used the previous message.
  const int m = 8;
  const double message = 0.25;
  const parallel::ScheduleShape shape{ScheduleKind::gpipe, 2, 1, m, parallel::Pass::train};
  CHECK(run(shape, {1, 1, 1, message}, Messages::copied).step_seconds == Approx(3 * (m + 1) + 2 * message));
  CHECK(run(shape, {1, 1, 1, message}, Messages::in_order).step_seconds ==
        Approx(3 * (m + 1) + 2 * m * message));
}

TEST_CASE("messages awaited where they are posted stall a pipeline less if they are posted late",
          "[replay]") {
  for (const auto& [kind, chunks] : {std::pair{ScheduleKind::interleaved, 2}, {ScheduleKind::zb_h1, 1}}) {
    parallel::ScheduleShape shape{kind, 4, chunks, 8, parallel::Pass::train};
    const core::rank::RankRecord record = record_of(shape, {1, 1, 1, 0});
    const auto step = [&](bool overlap, bool early) {
      shape.early_receives = early;
      core::plan::ReplayInput input = input_of(shape, record, 0.05);
      input.overlap_p2p = overlap, input.messages_in_order = false;
      return core::plan::replay(input).step_seconds;
    };
    CAPTURE(static_cast<int>(kind));
    const double where_used = step(true, true), where_posted = step(false, false);
    CHECK(where_posted >= where_used);
    CHECK(where_posted < 1.1 * where_used);
    CHECK(step(false, true) > 1.2 * where_posted);
  }
}

TEST_CASE("a background collective is exposed by its remaining time when it is awaited", "[replay]") {
  const parallel::ScheduleShape shape{ScheduleKind::one_f_one_b, 1, 1, 1, parallel::Pass::train};
  core::rank::RankRecord record = record_of(shape, {1, 1, 1, 0});
  record.groups = {parallel::Group::dp};
  record.collectives = {{0, parallel::OpKind::reduce_scatter, "gradients", 5, true}};
  using Kind = core::rank::RecordedEvent::Kind;
  auto& backward = record.actions[{0, ActionKind::backward, core::rank::MicrobatchRole::last}];
  backward.insert(backward.begin(), {Kind::issue, 0, 0});  // 5 seconds, 2 of which the backward hides
  record.after = {{Kind::wait, 0, 0}};
  const core::plan::Replay overlapped = core::plan::replay(input_of(shape, record, 0));
  CHECK(overlapped.step_seconds == Approx(1 + 5));
  CHECK(overlapped.mean[base::LedgerPart::exposed_dp] == Approx(3));
  CHECK(overlapped.mean[base::LedgerPart::compute] == Approx(3));

  record.collectives[0].background = false;
  const core::plan::Replay stopped = core::plan::replay(input_of(shape, record, 0));
  CHECK(stopped.step_seconds == Approx(1 + 2 + 5));
  CHECK(stopped.mean[base::LedgerPart::exposed_dp] == Approx(5));
}

TEST_CASE("ranks of several stages meet in all their groups", "[replay]") {
  const parallel::ScheduleShape shape{ScheduleKind::one_f_one_b, 3, 1, 4, parallel::Pass::train};
  core::rank::RankRecord inner = record_of(shape, {1, 1, 1, 0});
  using Kind = core::rank::RecordedEvent::Kind;
  inner.groups = {parallel::Group::world, parallel::Group::tied};
  inner.collectives = {{0, parallel::OpKind::all_reduce, "norm", 3, false},
                       {1, parallel::OpKind::all_reduce, "tied", 2, false}};
  core::rank::RankRecord ends = inner;
  inner.groups.pop_back();
  inner.after = {{Kind::issue, 0, 0}, {Kind::wait, 0, 0}, {Kind::issue, 0, 0}, {Kind::wait, 0, 0}};
  ends.after = {{Kind::issue, 1, 0}, {Kind::wait, 1, 0},  {Kind::issue, 0, 0},
                {Kind::wait, 0, 0},  {Kind::issue, 0, 0}, {Kind::wait, 0, 0}};
  core::plan::ReplayInput input = input_of(shape, ends, 0);
  input.records[1] = &inner;
  CHECK(core::plan::replay(input).step_seconds == Approx(3.0 * (4 + 2) + 2 + 3 + 3));
}

TEST_CASE("operations that a step leaves in flight are awaited in the next step", "[replay]") {
  const parallel::ScheduleShape shape{ScheduleKind::one_f_one_b, 1, 1, 1, parallel::Pass::train};
  core::rank::RankRecord record = record_of(shape, {1, 1, 1, 0});
  record.groups = {parallel::Group::dp};
  record.collectives = {{0, parallel::OpKind::all_gather, "parameters", 4, true}};
  using Kind = core::rank::RecordedEvent::Kind;
  auto& forward = record.actions[{0, ActionKind::forward, core::rank::MicrobatchRole::last}];
  forward.push_back({Kind::wait, 0, 0});  // one second after the start of the step
  record.after = {{Kind::issue, 0, 0}};
  CHECK(core::plan::replay(input_of(shape, record, 0)).step_seconds == Approx(3 + 3));
}

TEST_CASE("the ledger sums to the step, and exposed messages are bubble", "[replay]") {
  const parallel::ScheduleShape shape{ScheduleKind::one_f_one_b, 4, 1, 8, parallel::Pass::train};
  const core::plan::Replay slow = run(shape, {1, 1, 1, 0.25}), fast = run(shape, {1, 1, 1, 0});
  CHECK(slow.step_seconds > fast.step_seconds);
  CHECK(slow.mean.sum() == Approx(slow.step_seconds));
  CHECK(slow.bubble > fast.bubble);
  CHECK(slow.mean[base::LedgerPart::compute] == Approx(3 * 8));
}

TEST_CASE("a slow rank delays its pipeline, and the observer sees the whole second step", "[replay]") {
  const parallel::ScheduleShape shape{ScheduleKind::one_f_one_b, 4, 1, 8, parallel::Pass::train};
  core::rank::RankRecord record = record_of(shape, {1, 1, 1, 0});
  record.groups = {parallel::Group::world};
  record.collectives = {{0, parallel::OpKind::all_reduce, "norm", 0, false}};
  record.after = {{core::rank::RecordedEvent::Kind::issue, 0, 0},
                  {core::rank::RecordedEvent::Kind::wait, 0, 0}};
  const core::plan::Replays replays(input_of(shape, record, 0.25));
  const double even = replays.run().step_seconds;
  CHECK(even == core::plan::replay(input_of(shape, record, 0.25)).step_seconds);
  const core::plan::Replay slow =
      replays.run({.slowdown = [](int rank, const parallel::Action*) { return rank == 2 ? 2.0 : 1.0; }});
  // At least the slow rank's own eight microbatches.
  CHECK(slow.step_seconds >= 2 * 3 * 8);
  CHECK(slow.ranks[2][base::LedgerPart::compute] == Approx(2 * 3 * 8));
  CHECK(slow.ranks[1][base::LedgerPart::compute] == Approx(3 * 8));
  std::vector<double> work(4), stalls(4);
  int messages = 0;
  replays.run({.observe = [&](const core::plan::ReplaySlice& s) {
    const auto rank = static_cast<std::size_t>(s.rank);
    if (s.kind == core::plan::ReplaySlice::Kind::work) work[rank] += s.seconds;
    if (s.kind == core::plan::ReplaySlice::Kind::stall) stalls[rank] += s.seconds;
    messages += s.kind == core::plan::ReplaySlice::Kind::message;
  }});
  for (std::size_t rank = 0; rank < 4; ++rank) {
    CHECK(work[rank] == Approx(3 * 8));
    CHECK(work[rank] + stalls[rank] == Approx(even));
  }
  CHECK(messages == 2 * 3 * 8);  // forward and backward messages over three links
}

TEST_CASE("a device waits for its host only if it has caught up", "[replay]") {
  const parallel::ScheduleShape shape{ScheduleKind::one_f_one_b, 1, 1, 1, parallel::Pass::train};
  const auto step = [&](const std::vector<double>& seconds, double launch) {
    core::rank::RankRecord record;
    core::rank::RecordedSegment& forward =
        record.actions[{0, ActionKind::forward, core::rank::MicrobatchRole::last}];
    for (const double s : seconds) {
      forward.push_back(
          {core::rank::RecordedEvent::Kind::op, static_cast<std::int32_t>(record.ops.size()), 0});
      record.ops.push_back({kernels::Operator::add, {}, {s, 0}});
    }
    complete(record, shape);
    core::plan::ReplayInput input = input_of(shape, record, 0);
    input.launch_seconds = launch;
    return core::plan::replay(input).step_seconds;
  };
  CHECK(step({2, 2, 2}, 1) == Approx(1 + 6));             // the device is slower
  CHECK(step({0.5, 0.5, 0.5}, 1) == Approx(3 + 0.5));     // the host is slower
  CHECK(step({5, 0.5, 0.5, 0.5}, 1) == Approx(1 + 6.5));  // operators issued meanwhile run at once
  CHECK(step({0.5, 0.5, 5}, 1) == Approx(3 + 5));
}

TEST_CASE("with graphs a list of operators is one launch, and the device waits for all of it", "[replay]") {
  const parallel::ScheduleShape shape{ScheduleKind::one_f_one_b, 1, 1, 1, parallel::Pass::train};
  const auto step = [&](std::int64_t operators, double seconds, double compared, bool graphs) {
    core::rank::RankRecord record;
    core::rank::RecordedSegment& forward =
        record.actions[{0, ActionKind::forward, core::rank::MicrobatchRole::last}];
    for (std::int64_t i = 0; i < operators; ++i)
      forward.push_back({core::rank::RecordedEvent::Kind::op, 0, 0});
    record.ops.push_back({kernels::Operator::add, {}, {seconds, 0}});
    complete(record, shape);
    core::plan::ReplayInput input = input_of(shape, record, 0);
    input.launch_seconds = 1;
    input.graphs = {graphs};
    input.compared_seconds = compared;
    return core::plan::replay(input).step_seconds;
  };
  CHECK(step(8, 0.5, 0.125, false) == Approx(8 + 0.5));
  CHECK(step(8, 0.5, 0.125, true) == Approx(1 + 8 * 0.125 + 8 * 0.5));
  CHECK(step(8, 0.5, 0, true) == Approx(1 + 8 * 0.5));
  // Fewer than four operators are launched one by one.
  CHECK(step(3, 0.5, 0.125, true) == Approx(3 + 0.5));
  CHECK(step(4, 0.5, 0.125, true) == Approx(1 + 4 * 0.125 + 4 * 0.5));
}

TEST_CASE("a background collective may follow one of another group", "[replay]") {
  const parallel::ScheduleShape shape{ScheduleKind::one_f_one_b, 1, 1, 1, parallel::Pass::train};
  core::rank::RankRecord record = record_of(shape, {1, 1, 1, 0});
  record.groups = {parallel::Group::dp_outer, parallel::Group::dp_inner};
  record.collectives = {{0, parallel::OpKind::all_gather, "parameters", 3, true},
                        {1, parallel::OpKind::all_gather, "parameters", 2, true}};
  using Kind = core::rank::RecordedEvent::Kind;
  const auto step = [&](std::int32_t after) {
    auto& forward = record.actions[{0, ActionKind::forward, core::rank::MicrobatchRole::last}];
    // Two of each. The second of the inner group follows the second of the outer one.
    forward = {{Kind::issue, 0, 0},        {Kind::issue, 1, 0, after}, {Kind::issue, 0, 0},
               {Kind::issue, 1, 0, after}, {Kind::op, 0, 0},           {Kind::wait, 0, 0},
               {Kind::wait, 1, 0}};
    const core::plan::Replay result = core::plan::replay(input_of(shape, record, 0));
    CHECK(result.mean.sum() == Approx(result.step_seconds));
    return result.step_seconds;
  };
  // The outer group ends at 3 and 6, the inner one by itself at 2 and 4, behind the other at 5 and 8. A
  // backward of two seconds follows.
  CHECK(step(-1) == Approx(6 + 2));
  CHECK(step(0) == Approx(8 + 2));
}

TEST_CASE("work beside a collective over NVLink is slower, as long as it takes", "[replay]") {
  const parallel::ScheduleShape shape{ScheduleKind::one_f_one_b, 1, 1, 1, parallel::Pass::train};
  core::rank::RankRecord record = record_of(shape, {10, 1, 1, 0});
  record.groups = {parallel::Group::dp};
  record.collectives = {{0, parallel::OpKind::all_gather, "parameters", 4, true}};
  using Kind = core::rank::RecordedEvent::Kind;
  auto& forward = record.actions[{0, ActionKind::forward, core::rank::MicrobatchRole::last}];
  const auto step = [&](core::rank::RecordedSegment events, std::array<double, core::plan::kPorts> shares) {
    forward = std::move(events);
    core::plan::ReplayInput input = input_of(shape, record, 0);
    input.slowdown_beside = 0.2;
    input.collective_cost = [=](std::int64_t, const core::rank::RecordedCollective& c,
                                const core::rank::RankRecord&) {
      return core::plan::TransferCost{.bandwidth = static_cast<double>(c.bytes), .shares = shares};
    };
    return core::plan::replay(input).step_seconds - 2;  // without the backward
  };
  const core::rank::RecordedSegment behind{{Kind::issue, 0, 0}, {Kind::op, 0, 0}, {Kind::wait, 0, 0}};
  CHECK(step(behind, {1, 0, 0}) == Approx(10 + 0.2 * 4));
  CHECK(step(behind, {0.5, 1, 0}) == Approx(10));  // between nodes
  CHECK(step(behind, {0, 0, 0}) == Approx(10));    // from the host
  // Four seconds that nothing hides slow nothing.
  CHECK(step({{Kind::issue, 0, 0}, {Kind::wait, 0, 0}, {Kind::op, 0, 0}}, {1, 0, 0}) == Approx(4 + 10));
}

TEST_CASE("a background collective slows a blocking one on the same port", "[replay]") {
  const parallel::ScheduleShape shape{ScheduleKind::one_f_one_b, 1, 1, 1, parallel::Pass::train};
  core::rank::RankRecord record = record_of(shape, {1, 1, 1, 0});
  record.groups = {parallel::Group::dp, parallel::Group::tp};
  record.collectives = {{0, parallel::OpKind::reduce_scatter, "gradients", 5, true},
                        {1, parallel::OpKind::all_reduce, "row_linear", 2, false}};
  using Kind = core::rank::RecordedEvent::Kind;
  auto& backward = record.actions[{0, ActionKind::backward, core::rank::MicrobatchRole::last}];
  backward.insert(backward.begin(), {Kind::issue, 0, 0});
  backward.push_back({Kind::issue, 1, 0}), backward.push_back({Kind::wait, 1, 0});
  record.after = {{Kind::wait, 0, 0}};
  core::plan::ReplayInput input = input_of(shape, record, 0);
  const auto run = [&](std::array<double, core::plan::kPorts> dp, std::array<double, core::plan::kPorts> tp,
                       double latency) {
    input.collective_cost = [=](std::int64_t, const core::rank::RecordedCollective& c,
                                const core::rank::RankRecord&) {
      return core::plan::TransferCost{latency, static_cast<double>(c.bytes) - latency,
                                      c.group == 0 ? dp : tp};
    };
    std::vector<double> seen;
    const core::plan::Replays replays(input);
    const core::plan::Replay result = replays.run({.observe = [&](const core::plan::ReplaySlice& s) {
      if (s.kind == core::plan::ReplaySlice::Kind::collective) seen.push_back(s.seconds);
    }});
    CHECK(result.mean.sum() == Approx(result.step_seconds));
    CHECK(result.mean[base::LedgerPart::compute] == Approx(3));
    REQUIRE(seen.size() == 1);
    return std::array{result.step_seconds, result.mean[base::LedgerPart::exposed_tp],
                      result.mean[base::LedgerPart::exposed_dp], seen[0]};
  };
  const auto equal = [](const std::array<double, 4>& a, const std::array<double, 4>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] == Approx(b[i]));
  };
  // dp starts at 1. At 3, when the backward's products end, dp has 3 seconds left. tp's two then take 4
  // seconds, and dp's last second is from 7 to 8.
  equal(run({1, 0, 0}, {1, 0, 0}, 0), {8, 4, 1, 7});
  equal(run({0, 1, 0}, {1, 0, 0}, 0), {6, 2, 1, 5});
  // One second of each is latency. tp transfers from 4 on, when dp has two seconds left, and takes 2; dp's
  // last second is from 6 to 7.
  equal(run({1, 0, 0}, {1, 0, 0}, 1), {7, 3, 1, 6});
  // Half of the port against all of it: tp takes 3 seconds, and dp has one second left at 6.
  equal(run({0.5, 1, 0}, {1, 0, 0}, 0), {7, 3, 1, 6});
}

TEST_CASE("a message and a background collective slow each other on the same port and direction",
          "[replay]") {
  const parallel::ScheduleShape shape{ScheduleKind::one_f_one_b, 2, 1, 1, parallel::Pass::train};
  core::rank::RankRecord last = record_of(shape, {1, 1, 1, 0});
  using Kind = core::rank::RecordedEvent::Kind;
  last.groups = {parallel::Group::world, parallel::Group::dp};
  last.collectives = {{0, parallel::OpKind::all_reduce, "norm", 0, false},
                      {1, parallel::OpKind::all_gather, "parameters", 10, true}};
  last.after = {{Kind::issue, 0, 0}, {Kind::wait, 0, 0}};
  core::rank::RankRecord first = last;
  first.before = {{Kind::issue, 1, 0}};
  first.after = {{Kind::wait, 1, 0}, {Kind::issue, 0, 0}, {Kind::wait, 0, 0}};
  core::plan::ReplayInput input = input_of(shape, last, 0);
  input.records[0] = &first;
  const auto run = [&](std::array<double, core::plan::kPorts> message) {
    input.collective_cost = [](std::int64_t, const core::rank::RecordedCollective& c,
                               const core::rank::RankRecord&) {
      return core::plan::TransferCost{.bandwidth = static_cast<double>(c.bytes), .shares = {0, 1, 0}};
    };
    input.message_cost = [=](int, int) {
      return core::plan::TransferCost{.bandwidth = 1, .shares = message};
    };
    double messages = 0;
    const core::plan::Replays replays(input);
    const core::plan::Replay result = replays.run({.observe = [&](const core::plan::ReplaySlice& s) {
      if (s.kind == core::plan::ReplaySlice::Kind::message) messages += s.seconds;
    }});
    CHECK(result.ranks[0].sum() == Approx(result.step_seconds));
    return std::array{result.step_seconds, result.ranks[0][base::LedgerPart::bubble],
                      result.ranks[0][base::LedgerPart::exposed_dp], messages};
  };
  // The forward message takes from 1 to 3, the last rank's work until 6, the gradient's message until 8 and
  // its use until 10: dp then has two seconds left.
  CHECK(run({0, 1, 0}) == std::array{12.0, 7.0, 2.0, 4.0});
  CHECK(run({1, 0, 0}) == std::array{10.0, 5.0, 2.0, 2.0});
}
