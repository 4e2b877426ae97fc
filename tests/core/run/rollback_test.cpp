// What a run records of a rollback: skipped samples, and which checkpoints count.

#include <catch2/catch.hpp>
#include <fstream>

#include "core/run/agent/output_directory.h"
#include "core/run/agent/passed_over.h"
#include "io/metrics/sinks.h"
#include "io/records/records.h"
#include "kernels/base/error.h"
#include "tests/core/run/log_lines.h"
#include "tests/io/temp_dir.h"

using namespace trainerd;
namespace run = core::run;
using run::RunSeries;

namespace {

RunSeries rollback_series(const core::job::JobSpec& job) {
  return {.whole = job, .restarts = run::RestartBudget(1)};
}

}  // namespace

TEST_CASE("samples that a rollback skipped stay skipped until the run has passed its step", "[rollback]") {
  const test::TempDir dir;
  const std::string path = dir / "passed-over.json";
  const core::job::JobSpec job;
  RunSeries first = rollback_series(job);
  CHECK_FALSE(run::cursor_after(first, 25, path));
  CHECK(run::pass_samples_over(first, RunSeries::PassedOver{25, 112}, path).empty());
  // Asked twice, as when an elastic job shrinks before its next checkpoint; by the job's next start; by a run
  // whose next checkpoint was damaged.
  CHECK(run::cursor_after(first, 25, path) == 112);
  CHECK(run::cursor_after(first, 25, path) == 112);
  RunSeries later = rollback_series(job);
  CHECK_FALSE(run::cursor_after(later, 30, path));
  RunSeries next = rollback_series(job);
  CHECK(run::cursor_after(next, 25, path) == 112);
  // A run from before the step has other samples.
  {
    const test::LogLines log;
    CHECK_FALSE(run::cursor_after(next, 20, path));
    CHECK(log.text() ==
          "warning: the run begins before step 25, to which it had gone back: samples that were passed over "
          "there are read again\n");
  }
  RunSeries after = rollback_series(job);
  CHECK_FALSE(run::cursor_after(after, 25, path));
  // A rollback that skips nothing takes back the samples that an earlier one skipped.
  CHECK(run::pass_samples_over(first, RunSeries::PassedOver{0, 8}, path).empty());
  CHECK(run::cursor_after(after, 0, path) == 8);
  CHECK(run::pass_samples_over(first, std::nullopt, path).empty());
  RunSeries last = rollback_series(job);
  CHECK_FALSE(run::cursor_after(last, 0, path));
  std::ofstream(path) << "{";
  CHECK_THROWS_WITH(
      run::cursor_after(last, 0, path),
      Catch::StartsWith(path + ", which names the samples that the run passes over, cannot be read: ") &&
          Catch::EndsWith("; remove it to go on with the samples that the checkpoint names"));
}

TEST_CASE("a node that does not lead keeps the data for leading: used actions and the latest values",
          "[rollback]") {
  const core::job::JobSpec job;
  RunSeries series = rollback_series(job);
  run::keep_history(series, {.used = {1, 0, 2}, .losses = {3, 2}, .norms = {5, 4}}, 10);
  CHECK(series.spikes_used == std::vector<std::int64_t>{1, 0, 2});
  REQUIRE(series.judged.size() == 2);
  CHECK((series.judged[0].step == 9 && series.judged[0].loss == 3 && series.judged[0].grad_norm == 5));
  CHECK((series.judged[1].step == 10 && series.judged[1].loss == 2));
}

TEST_CASE("a truncated record of a withdrawn checkpoint does not hide a valid one", "[rollback]") {
  const test::TempDir dir;
  const run::OutputDirectory output(dir / "run");
  const auto write = [&](std::int64_t start, bool checkpoint, const std::string& withdrawn) {
    io::EventLogSink log(output.events(), start);
    log.on_notice({io::NoticeKind::start, start, "training starts", {}, 1});
    if (checkpoint) log.on_checkpoint({.step = start + 5, .path = output.checkpoints() + "/step-00000025"});
    if (!withdrawn.empty())
      log.on_notice({io::NoticeKind::withdrawn,
                     start + 7,
                     "checkpoint " + output.checkpoints() + "/" + withdrawn +
                         " does not count any more: the run goes back to step 25",
                     {},
                     1});
    log.on_finish({});
  };
  write(20, true, "step-00000027");
  CHECK_FALSE(output.records_no_checkpoint());
  write(25, false, "step-00000025");
  CHECK(output.records_no_checkpoint());
}
