#include "core/train/step_trace.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/run/agent/trace_files.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "tests/core/train_support.h"

namespace trainerd::core {
namespace {

using Slices = std::vector<io::TraceSlice>;

struct TracedStep {
  Slices slices;
  base::TimeLedger ledger;
  double begin = 0, end = 0;
};

/// Traces step 2 of every rank, but not step 1.
std::vector<TracedStep> traced(const job::JobSpec& job) {
  std::vector<TracedStep> steps(test::ranks_of(job));
  test::on_every_rank(job, [&](std::int64_t rank, rank::DeviceRank& cpu) {
    TracedStep& step = steps[static_cast<std::size_t>(rank)];
    test::step_on(cpu.trainer(), job, 1);
    if (!cpu.trainer().trace().empty()) throw std::logic_error("a trace nobody asked for");
    cpu.trainer().keep_trace(true);
    step.begin = base::monotonic_seconds();
    step.ledger = test::step_on(cpu.trainer(), job, 2).time;
    step.end = base::monotonic_seconds();
    step.slices = cpu.trainer().trace();
  });
  return steps;
}

void check_adds_up(const Slices& slices, const base::TimeLedger& ledger) {
  std::map<std::string, double> sums;
  for (const io::TraceSlice& s : slices) sums[s.category] += s.seconds;
  for (const base::LedgerPartInfo& part : base::kLedgerParts) {
    CAPTURE(part.name);
    CHECK(sums[part.name] == Approx(ledger[part.part]).margin(1e-9));
  }
}

TEST_CASE("a traced step's slices follow each other and add up to its ledger", "[trace]") {
  job::JobSpec job = test::small_job();
  job.batch.micro = 1;
  job.parallel = GENERATE(parallel::ParallelOptions{.tp = 2, .pp = 2, .dp = 2},
                          parallel::ParallelOptions{.pp = 2, .schedule = parallel::ScheduleKind::zb_h1},
                          parallel::ParallelOptions{});
  for (const TracedStep& step : traced(job)) {
    check_adds_up(step.slices, step.ledger);
    double at = step.begin;
    for (const io::TraceSlice& s : step.slices) {
      CHECK(s.start_seconds >= at - 1e-9);
      CHECK(s.seconds > 0);
      at = s.start_seconds + s.seconds;
    }
    CHECK(at <= step.end + 1e-9);
  }
}

TEST_CASE("a trace names every action's chunk and microbatch, and every collective's axis, label and bytes",
          "[trace]") {
  job::JobSpec job = test::small_job();
  job.batch.micro = 1;  // two microbatches on each of two data-parallel ranks
  job.parallel = {.tp = 2, .pp = 2, .dp = 2};
  const std::vector<TracedStep> steps = traced(job);
  for (std::size_t rank = 0; rank < steps.size(); ++rank) {
    std::set<std::pair<std::int64_t, std::int64_t>> forwards, backwards;
    std::map<std::string, std::set<std::string>> labels;  // by axis
    for (const io::TraceSlice& s : steps[rank].slices) {
      if (s.category == "compute" && s.name != "compute") {
        REQUIRE(s.numbers.size() == 2);
        CHECK(s.numbers[0].first == "chunk");
        CHECK(s.numbers[1].first == "microbatch");
        REQUIRE((s.name == "forward" || s.name == "backward"));
        (s.name == "forward" ? forwards : backwards).emplace(s.numbers[0].second, s.numbers[1].second);
      }
      if (!s.category.starts_with("exposed_")) continue;
      CHECK(s.name.starts_with(s.category.substr(8) + " "));
      CHECK(!s.label.empty());
      labels[s.category].insert(s.label);
      CHECK(s.numbers.back().first == "bytes");
      CHECK(s.numbers.back().second > 0);
    }
    const std::int64_t chunk = rank < 4 ? 0 : 1;
    const std::set<std::pair<std::int64_t, std::int64_t>> expected{{chunk, 0}, {chunk, 1}};
    CHECK(forwards == expected);
    CHECK(backwards == expected);
    CHECK(labels["exposed_world"] == std::set<std::string>{"norm_and_loss", "votes"});
    CHECK(labels["exposed_pp"].count("pipeline") == 1);
    CHECK(!labels["exposed_tp"].empty());
    CHECK(!labels["exposed_dp"].empty());
  }
  // The norm, the loss and the sum of its weights are three doubles.
  for (const io::TraceSlice& s : steps[0].slices)
    if (s.label == "norm_and_loss") CHECK(s.numbers.back().second == 24);
}

TEST_CASE("time of a step that no part claims is other", "[trace]") {
  const Slices filled =
      train::filled_trace({{.name = "a", .category = "compute", .start_seconds = 2, .seconds = 1},
                           {.name = "none", .category = "compute", .start_seconds = 3, .seconds = 0},
                           {.name = "b", .category = "bubble", .start_seconds = 3, .seconds = 1.5}},
                          4, 1.5, 5);
  REQUIRE(filled.size() == 4);
  CHECK(filled[0].name == "other");
  CHECK(filled[0].start_seconds == 1.5);
  CHECK(filled[0].seconds == 0.5);
  CHECK(filled[3].start_seconds == 4.5);
  CHECK(filled[3].seconds == 0.5);
  for (const io::TraceSlice& s : filled) CHECK(s.process == 4);
}

TEST_CASE("the ranks' parts of a step become one file", "[trace]") {
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / "trainerd-trace-files-test";
  std::filesystem::remove_all(directory);
  run::TraceFiles files(directory.string(), 2, "-node-1");
  const auto slice = [](std::int64_t rank, double start) {
    return io::TraceSlice{
        .name = "forward", .category = "compute", .process = rank, .start_seconds = start, .seconds = 1};
  };
  CHECK(files.add(1, {.step = 7, .slices = {slice(1, 101)}, .last = true}).empty());
  CHECK(files.add(0, {.step = 7, .slices = {slice(0, 100)}, .last = false}).empty());
  CHECK(files.add(0, {.step = 8, .slices = {slice(0, 110)}, .last = true}).empty());
  const std::string path = files.add(0, {.step = 7, .slices = {slice(0, 102)}, .last = true});
  CHECK(path == (directory / "step-00000007-node-1.json").string());
  const nlohmann::json trace = nlohmann::json::parse(std::ifstream(path));
  std::vector<std::pair<int, double>> starts;
  for (const auto& event : trace["traceEvents"])
    if (event["ph"] == "X") starts.emplace_back(event["pid"], event["ts"]);
  CHECK(starts == std::vector<std::pair<int, double>>{{0, 0.0}, {0, 2e6}, {1, 1e6}});
  std::filesystem::remove_all(directory);
  run::TraceFiles nowhere("/dev/null/traces", 1, "");
  CHECK_THROWS_AS(nowhere.add(0, {.step = 1, .slices = {slice(0, 1)}, .last = true}), base::DataError);
}

}  // namespace
}  // namespace trainerd::core
