#include "io/metrics/report/comparison.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "io/metrics/report/load.h"
#include "io/metrics/sinks.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

namespace base = trainerd::base;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

ComparedRun compared(const std::string& label, double loss, std::int64_t steps) {
  ComparedRun run{label, "runs/" + label, {}};
  Report& r = run.report;
  r.now = 1700000000;
  r.info.name = label;
  r.info.steps = 100;
  r.info.tokens_per_step = 64;
  r.summary = {.step = steps, .wall_seconds = 9, .outcome = steps == 100 ? "done" : kRunning};
  for (std::int64_t n = 1; n <= steps; ++n)
    r.series.add({.step = n,
                  .loss = loss + 1 / static_cast<double>(n),
                  .mfu = {},
                  .time = {{base::LedgerPart::compute, 0.25}, {base::LedgerPart::exposed_dp, 0.05}}});
  r.final_loss = loss;
  r.evaluations = {{.step = 10, .loss = loss + 0.5}, {.step = 20, .loss = loss + 0.75}};
  return run;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a comparison has figures, curves, ledgers and the differing keys of its runs, and loads nothing") {
  const std::string page =
      render_comparison({compared("a<b>", 1.5, 100), compared("c", 2.25, 40)},
                        {{"optimizer.lr", {"0.001", "0.003"}}, {"model.bias", {"true", ""}}});
  for (const char* text :
       {"2 runs", "a&lt;b&gt;", "1.5000", "2.2500", "2.2500", "40 / 100", "done", "running", "optimizer.lr",
        "0.003", "none", "exposed_dp", "50 ms", "300 ms", "id=\"data\"", "\"label\":\"c\"", "<svg"}) {
    INFO(text);
    CHECK(contains(page, text));
  }
  // A name cannot close the script's data, and the page cannot load anything.
  CHECK_FALSE(contains(page, "\"a<b>"));
  CHECK(contains(page, "a\\u003cb>"));
  CHECK(contains(page, "default-src 'none'"));
  for (const char* outside : {"http://", "https://", "<link", "src=", "@import"}) {
    std::string without = page;
    // The name space of SVG is not loaded.
    for (std::size_t at = 0; (at = without.find("http://www.w3.org/2000/svg")) != std::string::npos;)
      without.erase(at, 26);
    INFO(outside);
    CHECK_FALSE(contains(without, outside));
  }
}

TEST_CASE("the lowest validation loss is shown beside the last") {
  const std::string page = render_comparison({compared("a", 1.0, 50), compared("b", 1.0, 50)}, {});
  CHECK(contains(page, "1.7500"));
  CHECK(contains(page, "1.5000"));
  CHECK(contains(page, "the same in every key"));
}

TEST_CASE("runs are labelled by the part of their directories that differs") {
  using Labels = std::vector<std::string>;
  CHECK(run_labels({"runs/a", "runs/b/"}) == Labels{"a", "b"});
  CHECK(run_labels({"x/run", "y/run"}) == Labels{"x/run", "y/run"});
  CHECK(run_labels({"."}).size() == 1);
}

TEST_CASE("a directory gives the report that its run wrote") {
  const TempDir dir;
  write_file(dir / "job.yaml", "name: loaded\n");
  {
    JsonlSink steps(dir / "steps.jsonl", 0);
    EventLogSink events(dir / "events.jsonl", 0);
    events.on_notice(
        {.kind = NoticeKind::start, .step = 0, .message = "begins", .details = {}, .wall_time = 1000});
    for (std::int64_t n = 1; n <= 9; ++n)
      steps.on_step({.step = n,
                     .tokens = n * 10,
                     .loss = 3,
                     .tokens_per_second = static_cast<double>(100 * n),
                     .mfu = {},
                     .time = {{base::LedgerPart::compute, 1.0}},
                     .wall_time = 1000 + static_cast<double>(n)});
    events.on_notice({.kind = NoticeKind::finish,
                      .step = 9,
                      .message = "all 9 steps are done",
                      .details = {},
                      .wall_time = 1010});
  }
  const Report report = load_report(dir.path());
  CHECK(report.summary.outcome == "done");
  CHECK(report.summary.step == 9);
  CHECK(report.tokens == 90);
  CHECK(report.total_seconds == Approx(10));
  CHECK(report.median_tokens_per_second == 500);
  CHECK(report.job_yaml == "name: loaded\n");
  CHECK(contains(render(report), "<h1>" + std::filesystem::path(dir.path()).filename().string() + "</h1>"));
}
