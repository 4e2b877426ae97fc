#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <regex>
#include <sstream>
#include <thread>

#include "io/metrics/sinks.h"
#include "kernels/base/fd.h"
#include "tests/io/temp_dir.h"

using trainerd::base::UniqueFd;
namespace base = trainerd::base;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

RunInfo info() {
  return {.name = "tiny",
          .output = "runs/tiny",
          .device = "cpu",
          .threads = 2,
          .parameters = 10423000,
          .steps = 200,
          .start_step = 0,
          .tokens_per_step = 4096,
          .flops_per_token = 6.1e7,
          .peak_flops = 5.74e11,
          .precision = "bf16",
          .memory_planned_bytes = 300 << 20,
          .memory_regions = {},
          .version = "0.1.0"};
}

StepRecord step(std::int64_t n) {
  return {.step = n,
          .tokens = n * 4096,
          .loss = 5.0 / static_cast<double>(n),
          .step_seconds = 0.3,
          .tokens_per_second = 13700,
          .mfu = 0.625,
          .time = {{base::LedgerPart::compute, 0.24},
                   {base::LedgerPart::exposed_tp, 0.03},
                   {base::LedgerPart::exposed_world, 1e-6},
                   {base::LedgerPart::optimizer, 0.03}}};
}

std::string run_to_file(const TempDir& dir, Screen::Style style) {
  const std::string path = dir / "out";
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  Screen screen(fd.get(), style);
  RunLog log;
  log.open(dir / "run.log");
  ConsoleSink sink(screen, log);
  sink.on_start(info());
  sink.on_step(step(1));
  // The screen draws only the newest bar, so waits until this one is drawn.
  while (read_file(path).find(" 1/200") == std::string::npos) std::this_thread::yield();
  for (std::int64_t n = 2; n <= 200; ++n) sink.on_step(step(n));
  sink.on_evaluation({.step = 200, .loss = 0.0375, .tokens = 1234567, .seconds = 2});
  sink.on_checkpoint(
      {.step = 200, .bytes = 1 << 20, .snapshot_seconds = 0.01, .write_seconds = 0.5, .path = "p"});
  sink.on_finish({.step = 200, .wall_seconds = 61.2, .outcome = "done"});
  screen.finish();
  return read_file(path);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("a peak that was measured is called that wherever MFU is", "[console]") {
  const TempDir dir;
  const std::string path = dir / "out";
  const auto text_with = [&](bool measured) {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    Screen screen(fd.get(), Screen::Style::plain);
    RunLog log;
    log.open(dir / "run.log");
    ConsoleSink sink(screen, log);
    RunInfo of_run = info();
    of_run.peak_measured = measured;
    sink.on_start(of_run);
    sink.on_step(step(1));
    sink.on_finish({.step = 1, .wall_seconds = 1, .outcome = "done"});
    screen.finish();
    return read_file(path);
  };
  const std::string measured = text_with(true), published = text_with(false);
  CHECK(has(measured, "measured GEMM peak 574 GFLOP/s"));
  CHECK(has(measured, "MFU 62.5% of measured GEMM peak  ETA"));
  CHECK(has(measured, "median MFU       62.5% of measured GEMM peak\n"));
  CHECK_FALSE(has(published, "measured"));
}

TEST_CASE("plain output is a few whole lines without control characters") {
  const TempDir dir;
  const std::string out = run_to_file(dir, Screen::Style::plain);
  INFO(out);
  CHECK_FALSE(has(out, "\033"));
  CHECK_FALSE(has(out, "\r"));
  CHECK(has(out, "10.4M parameters"));
  CHECK(has(out, "574 GFLOP/s"));
  CHECK(has(out, "step 1/200 (0%)  loss 5.0000  13.7k tok/s  MFU 62.5%"));
  CHECK(has(out, "step 200/200 (100%)  loss 0.0250"));
  CHECK(count(out, "ETA") == 4);  // the first three steps and the last; the others came within five seconds
  CHECK(has(out, "validation loss 0.0375, perplexity 1.038 (1,234,567 tokens"));
  CHECK(has(out, "checkpoint at step 200: 1.00 MiB"));
  CHECK(has(out, "compute 80.0%, exposed tp 10.0%, optimizer 10.0%\n"));
  CHECK(has(out, "1m01s"));
  CHECK(has(out, "runs/tiny/report.html"));
  CHECK(out.back() == '\n');
}

TEST_CASE("a terminal gets a bar that is redrawn in place and fits the line") {
  const TempDir dir;
  const std::string out = run_to_file(dir, Screen::Style::terminal);
  INFO(out);
  CHECK(has(out, "█"));
  CHECK(has(out, "\r\033[K"));
  CHECK(has(out, "200/200  loss 0.0250"));
  std::size_t widest = 0;
  // How many bars are drawn depends on the screen's thread. The last one is always drawn.
  for (std::size_t at = 0; at < out.size();) {
    const std::size_t end = std::min(out.find_first_of("\r\n", at), out.size());
    std::string drawn = out.substr(at, end - at);
    at = end + 1;
    while (drawn.find("\033[K") != std::string::npos) drawn.erase(drawn.find("\033[K"), 3);
    if (!has(drawn, "% ") || !has(drawn, "/200  loss")) continue;  // a bar, not a plain line
    const auto starts_character = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
    widest = std::max(widest,
                      static_cast<std::size_t>(std::count_if(drawn.begin(), drawn.end(), starts_character)));
  }
  CHECK(widest > 60);
  CHECK(widest < 80);
}

TEST_CASE("a long evaluation is shown while it goes on") {
  const TempDir dir;
  for (const auto style : {Screen::Style::plain, Screen::Style::terminal}) {
    const std::string path = dir / "out";
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    Screen screen(fd.get(), style);
    RunLog log;
    ConsoleSink sink(screen, log);
    sink.on_start(info());
    sink.on_step(step(5));
    for (std::int64_t done = 1; done <= 3; ++done)
      sink.on_evaluation_progress({.step = 5, .done = done, .batches = 40});
    screen.finish();
    const std::string out = read_file(path);
    INFO(out);
    // Plain lines come every few seconds; a terminal's last line is redrawn each time.
    const std::string shown = style == Screen::Style::terminal ? "3 of 40" : "1 of 40";
    CHECK(has(out, "evaluation at step 5: " + shown + " batches"));
    if (style == Screen::Style::plain) CHECK_FALSE(has(out, "3 of 40"));
  }
}

TEST_CASE("an unknown MFU is not shown") {
  const TempDir dir;
  const UniqueFd fd(::open((dir / "out").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  Screen screen(fd.get(), Screen::Style::plain);
  RunLog log;
  ConsoleSink sink(screen, log);
  StepRecord record = step(1);
  record.mfu.reset();
  sink.on_start(info());
  sink.on_step(record);
  sink.on_finish({.step = 1, .wall_seconds = 1, .outcome = "stopped by SIGTERM"});
  screen.finish();
  CHECK_FALSE(has(read_file(dir / "out"), "MFU"));
  CHECK(has(read_file(dir / "out"), "stopped by SIGTERM"));
}

TEST_CASE(
    "run.log has what the screen had, with the time and no control characters, and little of the progress") {
  const TempDir dir;
  run_to_file(dir, Screen::Style::terminal);
  const std::string log = read_file(dir / "run.log");
  INFO(log);
  CHECK_FALSE(has(log, "\033"));
  CHECK(has(log, " info      model     10.4M parameters"));
  CHECK(has(log, " info    step 1/200 (0%)  loss 5.0000"));
  CHECK(has(log, " info    step 200/200 (100%)"));
  CHECK(count(log, "ETA") == 2);
  CHECK(has(log, " info    evaluation at step 200"));
  CHECK(has(log, " info    tiny: done"));
  std::istringstream text(log);
  for (std::string line; std::getline(text, line);)
    CHECK(std::regex_search(line,
                            std::regex("^20\\d\\d-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{3}[+-]\\d{4} ")));
}
