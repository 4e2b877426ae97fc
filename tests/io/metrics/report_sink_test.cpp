#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "io/metrics/report/chart.h"
#include "io/metrics/sinks.h"
#include "io/runs/attempts.h"
#include "io/runs/series.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

namespace base = trainerd::base;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

RunInfo reported_info(std::int64_t steps, std::int64_t start_step = 0) {
  return {.name = "a <b> & c",
          .output = "runs/x",
          .device = "cpu",
          .threads = 2,
          .parameters = 10423000,
          .steps = steps,
          .start_step = start_step,
          .tokens_per_step = 4096,
          .flops_per_token = 6.1e7,
          .peak_flops = 5.74e11,
          .precision = "bf16",
          .memory_planned_bytes = 300 << 20,
          .memory_regions = {{"weights", 80 << 20}, {"frames", 220 << 20}},
          .version = "0.1.0"};
}

StepRecord reported_step(std::int64_t n) {
  const double x = static_cast<double>(n);
  return {.step = n,
          .tokens = n * 4096,
          .loss = 1.2 + 4.5 / std::sqrt(x),
          .grad_norm = 0.4 + 20 / x,
          .learning_rate = 1e-3 * std::min(1.0, x / 40),
          .step_seconds = 0.3,
          .tokens_per_second = 13700,
          .mfu = 0.625,
          .time = {{base::LedgerPart::compute, 0.21},
                   {base::LedgerPart::exposed_tp, 0.03},
                   {base::LedgerPart::exposed_pp, 0.01},
                   {base::LedgerPart::data_wait, 0.01},
                   {base::LedgerPart::optimizer, 0.04}}};
}

std::string report(const TempDir& dir, std::int64_t steps, const std::string& yaml = "name: x\n") {
  ReportSink sink(dir / "report.html", dir / "steps.jsonl", dir / "events.jsonl", yaml);
  sink.on_start(reported_info(steps));
  for (std::int64_t n = 1; n <= steps; ++n) sink.on_step(reported_step(n));
  sink.on_evaluation({.step = steps, .loss = 1.875, .tokens = 100, .seconds = 1});
  sink.on_checkpoint(
      {.step = steps, .bytes = 1 << 20, .snapshot_seconds = 0.01, .write_seconds = 0.5, .path = "p"});
  sink.on_finish({.step = steps, .wall_seconds = 61.2, .outcome = "done"});
  return read_file(dir / "report.html");
}

bool page_has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::size_t page_count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("the report shows seven charts, the figures and the job, and fetches nothing") {
  const TempDir dir;
  const std::string page = report(dir, 300, "name: \"<script>\"\n");
  CHECK(page_count(page, "<svg") == 7);
  CHECK(page_count(page, "</svg>") == 7);
  for (const char* text :
       {"Loss", "Learning rate", "Gradient norm", "Tokens per second", "Model FLOPs", "Where a step",
        "1.8750", "13.7k", "62.5%", "10.4M", "1m01s", "a &lt;b&gt; &amp; c", "&lt;script&gt;", "optimizer",
        "exposed_tp", "exposed_pp", "What of it is not compute"}) {
    INFO(text);
    CHECK(page_has(page, text));
  }
  for (const char* outside : {"http:", "https:", "<script", "<link", "src=", "url(", "@import", "href="}) {
    INFO(outside);
    CHECK_FALSE(page_has(page, outside));
  }
  CHECK_FALSE(std::filesystem::exists(dir / "report.html.partial"));
}

TEST_CASE("the report is well-formed") {
  if (std::system("command -v python3 >/dev/null") != 0) {
    WARN("python3 is not installed: the page's form was not checked");
    return;
  }
  const TempDir dir;
  report(dir, 50);
  // Every opened element is closed, in order (except void elements).
  write_file(dir / "check.py", R"(import sys
from html.parser import HTMLParser
class P(HTMLParser):
    def __init__(self): super().__init__(); self.open = []
    def handle_starttag(self, t, a): self.open += [] if t == 'meta' else [t]
    def handle_endtag(self, t): assert self.open.pop() == t, (t, self.getpos())
p = P(); p.feed(open(sys.argv[1]).read()); assert not p.open, p.open
)");
  CHECK(std::system(("python3 " + dir / "check.py " + dir / "report.html").c_str()) == 0);
}

TEST_CASE("a long run's report does not grow with it") {
  const TempDir dir;
  const std::size_t of_thousand = report(dir, 1000).size(), of_many = report(dir, 100000).size();
  CHECK(of_many < of_thousand * 3 / 2);
  CHECK(of_many < 400000);
}

TEST_CASE("a run of one step or none has a report too") {
  const TempDir dir;
  CHECK(page_has(report(dir, 1), "<svg"));
  ReportSink sink(dir / "none.html", dir / "steps.jsonl", dir / "events.jsonl", "");
  sink.on_start(reported_info(10));
  sink.on_finish({.step = 0, .wall_seconds = 0.1, .outcome = "capacity: does not fit"});
  CHECK(page_has(read_file(dir / "none.html"), "does not fit"));
}

TEST_CASE("values that are not finite leave no trace in the drawing") {
  const TempDir dir;
  ReportSink sink(dir / "report.html", dir / "steps.jsonl", dir / "events.jsonl", "");
  sink.on_start(reported_info(3));
  for (std::int64_t n = 1; n <= 3; ++n) {
    StepRecord record = reported_step(n);
    if (n == 2) record.loss = record.grad_norm = std::nan("");
    if (n == 3) record.loss = INFINITY;
    sink.on_step(record);
  }
  sink.on_finish({.step = 3, .wall_seconds = 1, .outcome = "diverged"});
  const std::string page = read_file(dir / "report.html");
  const std::size_t first = page.find("<svg"), last = page.rfind("</svg>");
  REQUIRE(first != std::string::npos);
  CHECK_FALSE(page_has(page.substr(first, last - first), "nan"));
  CHECK_FALSE(page_has(page.substr(first, last - first), "inf"));
}

TEST_CASE("a resumed run's report begins at the first step") {
  const TempDir dir;
  std::string log;
  for (std::int64_t n = 1; n <= 8; ++n) log += to_json_line(reported_step(n)) + "\n";
  write_file(dir / "steps.jsonl", log);
  ReportSink sink(dir / "report.html", dir / "steps.jsonl", dir / "events.jsonl", "");
  sink.on_start(reported_info(10, 6));  // the kill lost steps 7 and 8
  for (std::int64_t n = 7; n <= 10; ++n) sink.on_step(reported_step(n));
  sink.on_finish({.step = 10, .wall_seconds = 1, .outcome = "done"});
  const std::string page = read_file(dir / "report.html");
  for (std::int64_t n = 1; n <= 10; ++n)
    CHECK(page_count(page, "<title>step " + std::to_string(n) + ": training ") == 1);
}

TEST_CASE("evaluations and checkpoints of earlier processes are in a resumed run's report") {
  const TempDir dir;
  {
    EventLogSink before(dir / "events.jsonl", 0);
    before.on_evaluation({.step = 4, .loss = 3.4567, .tokens = 100, .seconds = 1});
    before.on_checkpoint(
        {.step = 6, .bytes = 7 << 20, .snapshot_seconds = 0.01, .write_seconds = 0.5, .path = "p"});
    before.on_evaluation({.step = 8, .loss = 2.3456, .tokens = 100, .seconds = 1});  // lost by the kill
  }
  ReportSink sink(dir / "report.html", dir / "steps.jsonl", dir / "events.jsonl", "");
  sink.on_start(reported_info(10, 6));
  sink.on_evaluation({.step = 10, .loss = 1.2345, .tokens = 100, .seconds = 1});
  sink.on_finish({.step = 10, .wall_seconds = 1, .outcome = "done"});
  const std::string page = read_file(dir / "report.html");
  CHECK(page_has(page, "3.4567"));
  CHECK(page_has(page, "1.2345"));
  CHECK(page_has(page, "7.00 MiB"));
  CHECK_FALSE(page_has(page, "2.3456"));
}

TEST_CASE("a report from the logs alone shows their speed and time") {
  const TempDir dir;
  std::string log;
  for (std::int64_t n = 1; n <= 200; ++n) log += to_json_line(reported_step(n)) + "\n";
  write_file(dir / "steps.jsonl", log);
  ReportSink sink(dir / "report.html", dir / "steps.jsonl", dir / "events.jsonl", "");
  sink.on_start(reported_info(200, 200));
  sink.on_finish({.step = 200, .wall_seconds = 0.001, .outcome = "done"});
  const std::string page = read_file(dir / "report.html");
  CHECK(page_has(page, "13.7k"));
  CHECK(page_has(page, "62.5%"));
  CHECK(page_has(page, "1m00s"));  // 200 steps of 0.3 s
}

TEST_CASE("a report that cannot be written is a spec error at the end, which training does not meet before") {
  ReportSink sink("/nonexistent-directory/report.html", "/nonexistent-directory/steps.jsonl",
                  "/nonexistent-directory/events.jsonl", "", 0.2);
  sink.on_start(reported_info(1));
  CHECK_NOTHROW(sink.on_step(reported_step(1)));
  CHECK_THROWS_AS(sink.on_finish({.step = 1, .wall_seconds = 1, .outcome = "done"}),
                  trainerd::base::SpecError);
  CHECK(sink.outlets().at(0).failures > 0);
}

TEST_CASE("the report is there while the run goes on, and says so") {
  const TempDir dir;
  const std::string path = dir / "report.html";
  ReportSink sink(path, dir / "steps.jsonl", dir / "events.jsonl", "");
  sink.on_start(reported_info(10));
  sink.on_step(reported_step(1));
  while (!std::filesystem::exists(path)) std::this_thread::yield();
  CHECK(page_has(read_file(path), "running"));
  CHECK(page_has(read_file(path).substr(0, 250), R"(<meta name="run" content="running">)"));
  sink.on_finish({.step = 1, .wall_seconds = 1, .outcome = "stopped by SIGTERM"});
  CHECK_FALSE(page_has(read_file(path), "content=\"running\""));
  CHECK(page_has(read_file(path), "stopped by SIGTERM"));
}

TEST_CASE(
    "the report covers every attempt: steps done again, changed keys, the time of all, and why the last "
    "failed") {
  const TempDir dir;
  const std::string events = dir / "events.jsonl";
  {
    EventLogSink log(events, 0);
    log.on_notice({.kind = NoticeKind::start,
                   .step = 0,
                   .message = "training starts",
                   .details = {},
                   .wall_time = 1e9});
    log.on_notice({.kind = NoticeKind::resume,
                   .step = 6,
                   .message = "goes on",
                   .details = {},
                   .wall_time = 1e9 + 1000,
                   .earlier = EarlierAttempt{.last_step = 8, .lost_seconds = 0.6, .wall_time = 1e9 + 100}});
    log.on_notice({.kind = NoticeKind::change,
                   .step = 6,
                   .message = "keys changed",
                   .details = {"optimizer.lr: 0.1 -> 0.2"},
                   .wall_time = 1e9 + 1000});
    log.on_notice({.kind = NoticeKind::stop,
                   .step = 7,
                   .message = "stopped by SIGTERM after step 7",
                   .details = {},
                   .wall_time = 1e9 + 1200});
  }
  ReportSink sink(dir / "report.html", dir / "steps.jsonl", events, "");
  sink.on_start(reported_info(10, 7));
  sink.on_notice({.kind = NoticeKind::resume,
                  .step = 7,
                  .message = "goes on",
                  .details = {},
                  .wall_time = 1e9 + 2000,
                  .earlier = EarlierAttempt{.last_step = 7, .lost_seconds = 0, .wall_time = 1e9 + 1200}});
  sink.on_step(reported_step(8));
  sink.on_notice({.kind = NoticeKind::failure,
                  .step = 8,
                  .message = "rank 1 was lost",
                  .details = {"run the job <again>"},
                  .wall_time = 1e9 + 2400});
  sink.on_finish({.step = 8, .wall_seconds = 400, .outcome = "rank 1 was lost"});
  const std::string page = read_file(dir / "report.html");
  CHECK(page_has(page, "<b>11m40s</b><span>total time, 3 attempts</span>"));  // 100 + 200 + 400 s
  CHECK(page_has(page, "<b>2</b><span>steps done again</span>"));
  CHECK(page_has(page, "killed, or its host was lost"));
  CHECK(page_has(page, "2 (600 ms)"));
  CHECK(page_has(page, "optimizer.lr: 0.1 -&gt; 0.2"));
  CHECK(page_has(page, "Failed after step 8</b><pre>rank 1 was lost\nrun the job &lt;again&gt;</pre>"));
}

TEST_CASE("the report says what ran, where, and on what") {
  const TempDir dir;
  ReportSink sink(dir / "report.html", dir / "steps.jsonl", dir / "events.jsonl", "");
  RunInfo i = reported_info(10);
  i.command = "trainerd run 'a job.yaml' --set lr=<1>";
  i.commit = "0123456789ab";
  i.host = "node-17";
  i.layout = "tp2 pp1 dp4 on 8 CPU ranks";
  i.data = "text: book.txt";
  i.data_tokens = 2048;
  i.memory_uses = {{"parameters", 3 << 20}, {"optimizer", 1 << 20}};
  sink.on_start(i);
  sink.on_step(reported_step(1));
  sink.on_finish({.step = 1, .wall_seconds = 1, .outcome = "done"});
  const std::string page = read_file(dir / "report.html");
  for (const char* text : {"trainerd run 'a job.yaml' --set lr=&lt;1&gt;", "(0123456789ab)", "node-17",
                           "tp2 pp1 dp4 on 8 CPU ranks", "text: book.txt: 2,048 tokens, 2.00 epochs",
                           "4,096 of 40,960, 4,096 per step",
                           "parameters</td><td class=\"n\">3.00 MiB</td><td class=\"n\">75.0%"}) {
    INFO(text);
    CHECK(page_has(page, text));
  }
}

TEST_CASE(
    "an attempt ends by what became of it, also after a request to stop, and a later one tells of a kill") {
  const auto notice = [](NoticeKind kind, std::int64_t step, double time, const std::string& message) {
    return NoticeRecord{kind, step, message, {}, time};
  };
  std::vector<NoticeRecord> notices{notice(NoticeKind::start, 0, 100, "starts"),
                                    notice(NoticeKind::stop, 5, 110, "SIGTERM: stopping"),
                                    notice(NoticeKind::stop, 6, 112, "stopped"),
                                    notice(NoticeKind::resume, 6, 200, "goes on"),
                                    notice(NoticeKind::warning, 7, 205, "a full disk"),
                                    notice(NoticeKind::resume, 6, 300, "goes on")};
  notices.back().earlier = EarlierAttempt{.last_step = 9, .lost_seconds = 3, .wall_time = 220};
  const std::vector<Attempt> attempts = attempts_of(notices);
  REQUIRE(attempts.size() == 3);
  CHECK((attempts[0].how == NoticeKind::stop && attempts[0].last_step == 6 && attempts[0].end == 112 &&
         attempts[0].outcome == "stopped"));
  CHECK((attempts[1].how == NoticeKind::failure && attempts[1].last_step == 9 && attempts[1].end == 220 &&
         attempts[1].lost_steps == 3));
  CHECK_FALSE(attempts[2].ended);
  CHECK(total_seconds(attempts, 310) == 12 + 20 + 10);
}

TEST_CASE("merged buckets keep extremes, means and sums") {
  StepSeries series;
  double time = 0;
  for (std::int64_t n = 1; n <= 5000; ++n) {
    StepRecord record = reported_step(n);
    record.loss = n == 1234 ? 99 : 2;
    series.add(record);
    time += record.time[base::LedgerPart::compute];
  }
  const auto buckets = series.coarse(100);
  CHECK(buckets.size() <= 100);
  CHECK(series.buckets().size() <= 1024);
  double high = 0, sum = 0, seconds = 0;
  std::int64_t steps = 0, next = 1;
  for (const StepBucket& b : buckets) {
    CHECK(b.first_step == next);
    next = b.last_step + 1;
    high = std::max(high, b.loss.high);
    sum += b.loss.sum;
    steps += b.steps;
    seconds += b.time[0];
  }
  CHECK(next == 5001);
  CHECK(high == 99);
  CHECK(sum == 2 * 4999 + 99);
  CHECK(steps == 5000);
  CHECK(seconds == Approx(time));
}

TEST_CASE("ticks are round numbers inside the range") {
  CHECK(round_ticks(0, 10, 5) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(round_ticks(0.3, 2.7, 5) == std::vector<double>{0.5, 1, 1.5, 2, 2.5});
  CHECK(round_ticks(-1, 1, 4) == std::vector<double>{-1, -0.5, 0, 0.5, 1});
}
