// Inputs to a restart of the workers: the budget, the snapshots on a node, and the ranks' last operations.

#include <sys/types.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "core/run/agent/flight_text.h"
#include "core/run/agent/node_snapshots.h"
#include "core/run/agent/restart_budget.h"
#include "core/run/worker/flight_segment.h"

using namespace trainerd;

namespace {

core::run::HeldStep held(std::int64_t step, std::int64_t segment) {
  core::run::HeldStep h;
  h.step = step;
  h.segments = {segment, segment};
  h.bytes = {64, 64};
  return h;
}

std::vector<std::int64_t> steps(const core::run::NodeSnapshots& snapshots) {
  std::vector<std::int64_t> all;
  for (const core::run::HeldStep& h : snapshots.held()) all.push_back(h.step);
  return all;
}

core::run::NodeSnapshots two_ranks() {
  std::vector<core::rank::DryRun> plans(2);
  for (core::rank::DryRun& plan : plans) plan.snapshot_bytes = 64;
  return {core::run::NodeRanks{4, 2}, plans, 3};
}

io::TensorSlice rows(std::int64_t begin, std::int64_t count) {
  return {"w", kernels::DType::f32, {8, 2}, {begin, 0}, {count, 2}};
}

using Steps = std::vector<std::int64_t>;

parallel::FlightRecord operation(const char* op, const char* group, std::uint64_t sequence,
                                 const char* label) {
  parallel::FlightRecord record;
  record.sequence = sequence;
  record.bytes = 24;
  record.group_size = 2;
  parallel::put_text(record.op, op);
  parallel::put_text(record.group, group);
  parallel::put_text(record.label, label);
  return record;
}

parallel::Layout tp2_dp2() {
  parallel::ParallelOptions options;
  options.tp = 2, options.dp = 2;
  parallel::Topology topology;
  topology.nodes = 1, topology.devices_per_node = 4;
  return parallel::resolve_layout(options, topology, {.layers = 2}, 1);
}

}  // namespace

TEST_CASE("restarts are counted over ten minutes", "[restart]") {
  core::run::RestartBudget budget(2);
  CHECK(budget.take(100));
  CHECK(budget.take(200));
  CHECK_FALSE(budget.take(699));
  CHECK(budget.taken() == 2);
  CHECK(budget.take(701));  // the first restart is ten minutes ago
  CHECK_FALSE(budget.take(702));
  CHECK_FALSE(core::run::RestartBudget(0).take(0));
}

TEST_CASE("a node holds the newest step of each segment, and drops steps that are repeated", "[restart]") {
  core::run::NodeSnapshots snapshots = two_ranks();
  CHECK(snapshots.held().empty());
  snapshots.add(held(5, 0));
  snapshots.add(held(10, 1));
  CHECK(steps(snapshots) == Steps{5, 10});
  snapshots.add(held(15, 0));
  CHECK(steps(snapshots) == Steps{10, 15});
  CHECK(snapshots.find(5) == nullptr);
  REQUIRE(snapshots.find(15) != nullptr);
  CHECK(snapshots.find(15)->segments == Steps{0, 0});
  snapshots.drop_after(10);
  CHECK(steps(snapshots) == Steps{10});
  CHECK(snapshots.segment(5, 1)->bytes().size() == 64);
}

TEST_CASE("a snapshot is held while none of its ranks' segments is filled again", "[restart]") {
  core::run::NodeSnapshots snapshots = two_ranks();
  snapshots.add({.step = 5, .segments = {0, 0}, .bytes = {64, 64}});
  snapshots.add({.step = 10, .segments = {1, 1}, .bytes = {64, 64}});
  // Rank 4 already knows that segment 0 is free, rank 5 does not.
  snapshots.add({.step = 15, .segments = {0, 2}, .bytes = {64, 64}});
  CHECK(steps(snapshots) == Steps{10, 15});
  snapshots.add({.step = 20, .segments = {2, 1}, .bytes = {64, 64}});
  CHECK(steps(snapshots) == Steps{15, 20});
}

TEST_CASE("a node whose ranks need state that others save is not self-contained", "[restart]") {
  core::run::NodeSnapshots snapshots = two_ranks();
  snapshots.describe(4, {rows(0, 3)}, {});
  snapshots.describe(5, {rows(3, 2)}, {});
  CHECK(snapshots.self_contained());
  snapshots.describe(5, {rows(3, 2)}, {rows(1, 3)});  // sharded differently, but complete
  CHECK(snapshots.self_contained());
  snapshots.describe(5, {rows(3, 2)}, {rows(4, 2)});
  CHECK_FALSE(snapshots.self_contained());
  const std::vector<core::run::HeldShard> shards = snapshots.shards(held(5, 0));
  REQUIRE(shards.size() == 2);
  CHECK((shards[1].bytes == 64 && shards[1].slices.size() == 1));
}

TEST_CASE("a failure report has each rank's last operation and the ranks that are missing", "[restart]") {
  const base::Segment segment = core::run::make_flight_segment(4);
  std::deque<parallel::FlightRecorder> recorders;
  for (std::int64_t place = 0; place < 4; ++place)
    recorders.emplace_back(core::run::flight_ring(segment, place));
  // Ranks 0 and 1 are one tensor-parallel group, 2 and 3 the other; 0 and 2, 1 and 3 are the data-parallel
  // ones.
  for (parallel::FlightRecorder& r : recorders) {
    const std::uint64_t order = r.enqueued(operation("all_reduce", "tp", 7, "row_linear"));
    r.started(order);
    r.done(order);
  }
  const auto begin = [&](std::size_t rank, const parallel::FlightRecord& record) {
    recorders[rank].started(recorders[rank].enqueued(record));
  };
  begin(0, operation("all_reduce", "tp", 8, "row_linear"));
  begin(2, operation("reduce_scatter", "dp", 3, "gradients"));
  recorders[3].enqueued(
      operation("reduce_scatter", "dp", 3, "gradients"));  // queued behind others: it has not started
  std::vector<core::run::RankFlights> ranks = core::run::read_flights(segment, {0, 4});
  ranks[1].process_state = 'T';
  const double now = base::monotonic_seconds() + 12;
  const std::vector<std::string> lines = core::run::flight_text(ranks, tp2_dp2(), {}, now);
  // Rank 0 blocks rank 2 but is not the cause: it waits for rank 1.
  REQUIRE(lines.size() == 5);
  CHECK(lines[0] ==
        "rank 1 has not entered all_reduce #8 \"row_linear\" of group tp (2 ranks), 24 bytes, which rank 0 "
        "waits "
        "in");
  CHECK_THAT(lines[1],
             Catch::StartsWith("rank 0: all_reduce #8 \"row_linear\" of group tp (2 ranks), 24 bytes: "
                               "begun 12.") &&
                 Catch::EndsWith(" s ago, not done"));
  CHECK_THAT(lines[2],
             Catch::StartsWith("rank 1: in no communication for 12.") &&
                 Catch::EndsWith("since all_reduce #7 \"row_linear\" of group tp (2 ranks), 24 bytes; "
                                 "its process is stopped"));
  CHECK_THAT(lines[3], Catch::Contains("reduce_scatter #3"));
  CHECK_THAT(lines[4], Catch::StartsWith("rank 3: in no communication for 12."));
  const auto end_of_line = [&](char state) {
    ranks[3].process_state = state;
    const std::string line = core::run::flight_text(ranks, tp2_dp2(), {}, now)[4];
    return line.substr(line.rfind("bytes") + 5);
  };
  CHECK(end_of_line('S').empty());
  CHECK(end_of_line('D') == "; its process waits for a device or a disk");
  CHECK(end_of_line('X') == "; its process has ended");
}

TEST_CASE("a ring that wrapped around keeps the latest operations in order", "[restart]") {
  const base::Segment segment = core::run::make_flight_segment(2);
  parallel::FlightRecorder recorder(core::run::flight_ring(segment, 1));
  for (std::uint64_t i = 1; i <= 2 * core::run::kFlightRecords + 5; ++i)
    recorder.done(recorder.enqueued(operation("exchange", "pp", i, "flow")));
  const std::vector<core::run::RankFlights> ranks = core::run::read_flights(segment, {6, 2});
  CHECK((ranks[0].rank == 6 && ranks[0].records.empty() && ranks[1].rank == 7));
  REQUIRE(ranks[1].records.size() == core::run::kFlightRecords);
  CHECK(ranks[1].records.back().sequence == 2 * core::run::kFlightRecords + 5);
  CHECK(ranks[1].records.front().sequence == core::run::kFlightRecords + 6);
  CHECK(core::run::flight_text({ranks[0]}, tp2_dp2(), {}, 0).front() == "rank 6: no communication yet");
}

TEST_CASE("the state of a process is reported, also of one that has ended", "[restart]") {
  CHECK(std::string("RS").find(core::run::process_state(::getpid())) != std::string::npos);
  CHECK(core::run::process_state(-1) == 'X');
}
