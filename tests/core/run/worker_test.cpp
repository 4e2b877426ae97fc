// The worker's loop, with the test as its agent.

#include "core/run/worker/worker.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <set>
#include <thread>

#include "core/rank/device_rank.h"
#include "core/run/wire/channel.h"
#include "core/run/wire/messages.h"
#include "kernels/base/clock.h"
#include "kernels/base/segment.h"
#include "tests/core/train_support.h"

using namespace trainerd;

namespace {

struct ReportedSnapshot {
  core::run::SnapshotReady said;
  std::vector<std::byte> bytes;
};

/// Messages of a worker during one run.
struct Reports {
  std::vector<io::StepRecord> steps;
  std::vector<io::RankStatusRecord> statuses;
  std::vector<io::EvaluationRecord> evaluations;
  std::vector<ReportedSnapshot> snapshots;
  std::vector<std::int64_t> traced;
  core::run::Finished finished;
  std::string order;  ///< s step, e evaluation, c snapshot, t trace
};

core::job::JobSpec job_of(const std::string& more) {
  return core::spec::parse_job(
      "name: small\nseed: 11\ndevice: cpu\n"
      "threads: 1\n"
      "model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 96, seq_len: 24}\n"
      "batch: {global: 4, micro: 2}\nprecision: fp32\n"
      "optimizer: {name: adamw, lr: 5.0e-3, schedule: {kind: cosine, warmup: 3, min_lr: 1.0e-4}}\n" +
          std::string(more.starts_with("steps") ? "" : "steps: 8\n") + "data: {format: synthetic}\n" + more,
      "small.yaml");
}

/// A run whose reports are `late` steps late. With `stop`, the agent asks for a stop before the first step.
/// With `stuck_until`, no checkpoint reaches the disk before that step.
Reports run_with_agent(const core::job::JobSpec& job, std::size_t late, bool stop = false,
                       std::int64_t stuck_until = 0) {
  const std::int64_t bytes = core::rank::DeviceRank(job, test::cpu_topology(1)).plan().snapshot_bytes;
  std::vector<base::Segment> segments;
  std::vector<base::UniqueFd> theirs;
  for (std::int64_t i = 0; i < core::rank::snapshot_segments(job); ++i) {
    segments.push_back(base::Segment::create("worker-test", bytes));
    theirs.emplace_back(::dup(segments.back().fd()));
  }
  auto [ours, control] = core::run::Channel::make_pair();
  core::run::Channel channel(std::move(ours));
  int status = -1;
  std::thread worker([&, end = std::move(control)]() mutable {
    core::run::WorkerMemory memory;
    memory.segments = std::move(theirs);
    status = core::run::run_worker(std::move(end), std::move(memory), late);
  });
  core::run::Start start;
  start.job_yaml = core::spec::to_yaml(job);
  start.layout = core::rank::layout_of(job, test::cpu_topology(1));
  channel.send(core::run::encode(core::run::AgentMessage{start}));
  if (stop) channel.send(core::run::encode(core::run::AgentMessage{core::run::Stop{}}));
  Reports reports;
  std::string failed;
  std::vector<int> stuck;
  const auto bytes_of = [&](const core::run::SnapshotReady& ready) {
    const auto filled = segments.at(static_cast<std::size_t>(ready.segment))
                            .bytes()
                            .first(static_cast<std::size_t>(ready.bytes));
    return std::vector<std::byte>(filled.begin(), filled.end());
  };
  const auto free_segment = [&](int segment) {
    channel.send(core::run::encode(core::run::AgentMessage{core::run::SnapshotSaved{segment}}));
  };
  for (bool over = false; !over;) {
    const std::optional<std::string> text = channel.receive();
    if (!text) break;
    const core::run::WorkerMessage message = core::run::decode_worker_message(*text);
    if (const auto* step = std::get_if<io::StepRecord>(&message))
      reports.steps.push_back(*step), reports.order += 's';
    if (!reports.steps.empty() && reports.steps.back().step >= stuck_until)
      for (const int segment : std::exchange(stuck, {})) free_segment(segment);
    if (const auto* rank_status = std::get_if<io::RankStatusRecord>(&message))
      reports.statuses.push_back(*rank_status);
    if (const auto* evaluation = std::get_if<io::EvaluationRecord>(&message))
      reports.evaluations.push_back(*evaluation), reports.order += 'e';
    if (const auto* trace = std::get_if<core::run::StepTrace>(&message))
      if (trace->last) reports.traced.push_back(trace->step), reports.order += 't';
    if (const auto* ready = std::get_if<core::run::SnapshotReady>(&message)) {
      reports.snapshots.push_back({*ready, {}});
      reports.order += 'c';
      if (ready->use == core::run::SnapshotUse::memory) continue;
      reports.snapshots.back().bytes = bytes_of(*ready);
      if (reports.steps.back().step < stuck_until) stuck.push_back(ready->segment);
      else free_segment(ready->segment);
    }
    if (const auto* failure = std::get_if<core::run::Failed>(&message))
      failed = failure->message, over = true;
    if (const auto* finished = std::get_if<core::run::Finished>(&message))
      reports.finished = *finished, over = true;
  }
  worker.join();
  // Reads the newest snapshot of each segment once the worker has ended: until then segments are filled
  // again.
  std::set<int> seen;
  for (auto saved = reports.snapshots.rbegin(); saved != reports.snapshots.rend(); ++saved)
    if (seen.insert(saved->said.segment).second) saved->bytes = bytes_of(saved->said);
  CHECK(failed == "");
  CHECK(status == 0);
  return reports;
}

}  // namespace

TEST_CASE("late reports do not change the records of steps, evaluations, traces or checkpoints", "[worker]") {
  const core::job::JobSpec job =
      job_of("evaluate: {every: 5, batches: 1}\ncheckpoint: {every: 3}\ntrace: {steps: [4, 7]}\n");
  const Reports prompt = run_with_agent(job, 0), late = run_with_agent(job, 1);
  CHECK(prompt.order == "ssscstsescstsce");
  CHECK(late.finished.step == 8);
  CHECK_FALSE(late.finished.stopped);
  REQUIRE(prompt.steps.size() == 8);
  REQUIRE(late.steps.size() == 8);
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(late.steps[i].step == static_cast<std::int64_t>(i) + 1);
    CHECK(late.steps[i].loss == prompt.steps[i].loss);
    CHECK(late.steps[i].grad_norm == prompt.steps[i].grad_norm);
    CHECK(late.steps[i].tokens == prompt.steps[i].tokens);
    CHECK(late.steps[i].time.sum() == Approx(late.steps[i].step_seconds).epsilon(1e-9));
  }
  CHECK(late.traced == std::vector<std::int64_t>{4, 7});
  REQUIRE(late.evaluations.size() == prompt.evaluations.size());
  for (std::size_t i = 0; i < late.evaluations.size(); ++i) {
    CHECK(late.evaluations[i].step == prompt.evaluations[i].step);
    CHECK(late.evaluations[i].loss == prompt.evaluations[i].loss);
  }
  REQUIRE(late.snapshots.size() == 3);
  REQUIRE(prompt.snapshots.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(late.snapshots[i].said.step == std::vector<std::int64_t>{3, 6, 8}[i]);
    CHECK(late.snapshots[i].said.cursor == prompt.snapshots[i].said.cursor);
    CHECK(late.snapshots[i].said.tokens == prompt.snapshots[i].said.tokens);
    CHECK(late.snapshots[i].bytes == prompt.snapshots[i].bytes);
  }
  CHECK(late.order == prompt.order);  // a step's report comes before its checkpoint; an evaluation comes
                                      // after its step
}

TEST_CASE("a checkpoint that is due by the clock is saved once every rank knows of it", "[worker]") {
  // Due after every step. With reports one step late, the vote arrives during the next step.
  const core::job::JobSpec by_steps = job_of("checkpoint: {every: 1}\n"),
                           by_time = job_of("checkpoint: {every: 0.001ms}\n");
  const std::size_t late = GENERATE(0u, 1u);
  const Reports reference = run_with_agent(by_steps, 0), reports = run_with_agent(by_time, late);
  REQUIRE(reference.snapshots.size() == 8);
  std::vector<std::int64_t> steps;
  for (const ReportedSnapshot& saved : reports.snapshots) {
    steps.push_back(saved.said.step);
    const ReportedSnapshot& same = reference.snapshots[static_cast<std::size_t>(saved.said.step) - 1];
    CHECK(saved.said.cursor == same.said.cursor);
    CHECK(saved.said.tokens == same.said.tokens);
    CHECK(saved.bytes == same.bytes);
  }
  CHECK(steps == (late == 0 ? std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8}
                            : std::vector<std::int64_t>{2, 4, 6, 8}));
}

TEST_CASE("snapshots in memory have the state of their step, and none overwrites one that is needed",
          "[worker]") {
  // The disk hangs until step 8: checkpoints 3 and 6 occupy two of three segments.
  const std::size_t late = GENERATE(0u, 1u);
  const Reports reference = run_with_agent(job_of("steps: 9\ncheckpoint: {every: 1}\n"), 0),
                reports =
                    run_with_agent(job_of("steps: 9\ncheckpoint: {every: 3, memory: 1}\n"), late, false, 8);
  using core::run::SnapshotUse;
  REQUIRE(reports.snapshots.size() == 8);
  const std::vector<std::int64_t> steps{1, 2, 3, 4, 5, 6, 7, 9};  // no segment is free for step 8
  std::vector<std::int64_t> in_segment(3, 0);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const core::run::SnapshotReady& said = reports.snapshots[i].said;
    CHECK(said.step == steps[i]);
    CHECK(said.use == (steps[i] % 3 == 0 ? SnapshotUse::checkpoint : SnapshotUse::memory));
    const ReportedSnapshot& same = reference.snapshots.at(static_cast<std::size_t>(steps[i]) - 1);
    CHECK((said.cursor == same.said.cursor && said.tokens == same.said.tokens));
    if (said.use == SnapshotUse::checkpoint || steps[i] == 7) CHECK(reports.snapshots[i].bytes == same.bytes);
    std::int64_t& held = in_segment.at(static_cast<std::size_t>(said.segment));
    if (i > 0) CHECK(held != steps[i - 1]);
    if (steps[i] < 8) CHECK((held == 0 || held % 3 != 0));
    held = steps[i];
  }
}

TEST_CASE("a snapshot in memory that is due by the clock is taken", "[worker]") {
  const Reports reports = run_with_agent(job_of("checkpoint: {every: 0, memory: {every: 0.001ms}}\n"), 0);
  REQUIRE(reports.snapshots.size() == 8);
  CHECK(reports.snapshots[0].said.use == core::run::SnapshotUse::memory);
  CHECK(reports.snapshots[7].said.use == core::run::SnapshotUse::checkpoint);
  CHECK(run_with_agent(job_of("checkpoint: {every: 0, memory: 1h}\n"), 0).snapshots.size() == 1);
}

TEST_CASE("a vote to stop takes effect with its report, and completed steps are saved", "[worker]") {
  const core::job::JobSpec job = job_of("");
  const std::size_t late = GENERATE(0u, 1u);
  const Reports reports = run_with_agent(job, late, true);
  CHECK(reports.finished.stopped);
  CHECK(reports.finished.step == 1 + static_cast<std::int64_t>(late));
  CHECK(reports.steps.size() == 1 + late);
  REQUIRE(reports.snapshots.size() == 1);
  CHECK(reports.snapshots[0].said.step == reports.finished.step);
  CHECK(reports.snapshots[0].said.cursor == job.batch.global * reports.finished.step);
}

TEST_CASE("a rank reports its status after its first and last step, and about once per second between",
          "[worker]") {
  const double begin = base::monotonic_seconds();
  const Reports reports = run_with_agent(job_of(""), 0);
  const double took = base::monotonic_seconds() - begin;  // on a busy machine also longer between two steps
  REQUIRE(reports.steps.size() == 8);
  REQUIRE(reports.statuses.size() >= 2);
  const io::RankStatusRecord &first = reports.statuses.front(), &last = reports.statuses.back();
  CHECK((first.rank == 0 && first.step == 1 && first.steps == 1));
  CHECK(first.step_seconds == reports.steps.front().step_seconds);
  CHECK((last.step == 8 && last.steps == 8));
  double seconds = 0;
  for (const io::StepRecord& step : reports.steps) seconds += step.step_seconds;
  CHECK(last.time.sum() == Approx(seconds).epsilon(1e-3));
  CHECK(static_cast<double>(reports.statuses.size()) <= 3 + took);
  CHECK(last.memory_used_bytes > 0);
  CHECK(last.memory_used_bytes <= last.memory_planned_bytes);
  CHECK(last.resident_bytes > last.memory_used_bytes);  // the memory is part of this test's process
}
