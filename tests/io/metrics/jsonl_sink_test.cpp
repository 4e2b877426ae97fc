#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "io/lines/earlier_attempt.h"
#include "io/lines/step_log.h"
#include "io/metrics/sinks.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using trainerd::base::DataError;
using trainerd::base::SpecError;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

StepRecord logged_step(std::int64_t n) {
  return {.step = n, .tokens = n * 100, .loss = 1.0 / static_cast<double>(n), .mfu = {}, .time = {}};
}

std::string lines(std::int64_t first, std::int64_t last) {
  std::string text;
  for (std::int64_t n = first; n <= last; ++n) text += to_json_line(logged_step(n)) + "\n";
  return text;
}

}  // namespace

TEST_CASE("every step is in the file as soon as it is reported") {
  const TempDir dir;
  JsonlSink sink(dir / "steps.jsonl", 0);
  for (std::int64_t n = 1; n <= 3; ++n) {
    sink.on_step(logged_step(n));
    CHECK(read_file(dir / "steps.jsonl") == lines(1, n));
  }
}

TEST_CASE("a fresh run starts a fresh file") {
  const TempDir dir;
  write_file(dir / "steps.jsonl", lines(1, 5));
  JsonlSink sink(dir / "steps.jsonl", 0);
  sink.on_step(logged_step(1));
  CHECK(read_file(dir / "steps.jsonl") == lines(1, 1));
}

TEST_CASE("a resumed run drops the steps it does again and a torn last line") {
  const TempDir dir;
  for (const std::string& tail :
       {lines(7, 9), lines(7, 7) + "{\"step\":8,\"tok", std::string("{\"st"), std::string("garbage\n")}) {
    write_file(dir / "steps.jsonl", lines(1, 6) + tail);
    JsonlSink sink(dir / "steps.jsonl", 6);
    CHECK(read_file(dir / "steps.jsonl") == lines(1, 6));
    sink.on_step(logged_step(7));
    CHECK(read_file(dir / "steps.jsonl") == lines(1, 7));
  }
}

TEST_CASE("a last line that lost only its line end is kept") {
  const TempDir dir;
  const std::string whole = lines(1, 6);
  write_file(dir / "steps.jsonl", whole.substr(0, whole.size() - 1));
  JsonlSink sink(dir / "steps.jsonl", 6);
  CHECK(read_file(dir / "steps.jsonl") == whole);
}

TEST_CASE("a garbled line is set aside with a warning, and the records around it stay") {
  const TempDir dir;
  write_file(dir / "steps.jsonl", lines(1, 2) + "garbage\n" + lines(4, 6) + "more\n" + lines(7, 9));
  {
    JsonlSink sink(dir / "steps.jsonl", 6);
    CHECK(sink.warning().find("steps.jsonl: line 3 ") != std::string::npos);
    CHECK(sink.warning().find("steps.jsonl.garbled") != std::string::npos);
    sink.on_step(logged_step(7));
  }
  CHECK(read_file(dir / "steps.jsonl") == lines(1, 2) + lines(4, 7));
  CHECK(read_file(dir / "steps.jsonl.garbled") == "garbage\nmore\n");
  CHECK(JsonlSink(dir / "steps.jsonl", 7).warning().empty());
  // A later invalid line is appended to the others.
  write_file(dir / "steps.jsonl", "again\n" + lines(1, 2));
  CHECK_FALSE(JsonlSink(dir / "steps.jsonl", 7).warning().empty());
  CHECK(read_file(dir / "steps.jsonl.garbled") == "garbage\nmore\nagain\n");
}

TEST_CASE("a log that is a link, a FIFO or a directory is refused and left alone") {
  const TempDir dir;
  const std::string path = dir / "steps.jsonl";
  write_file(dir / "mine", lines(1, 9));
  std::filesystem::create_symlink(dir / "mine", path);
  CHECK_THROWS_AS(JsonlSink(path, 3), SpecError);
  CHECK(read_file(dir / "mine") == lines(1, 9));
  std::filesystem::remove(path);
  REQUIRE(::mkfifo(path.c_str(), 0644) == 0);
  CHECK_THAT(message_of<SpecError>([&] { JsonlSink(path, 3); }),
             Catch::Contains("is not a regular file; remove it"));
  std::filesystem::remove(path);
  std::filesystem::create_directories(path);
  CHECK_THROWS_AS(JsonlSink(path, 3), SpecError);
}

TEST_CASE("a full disk does not end the run; what it lost is a spec error at the end that names the file") {
  JsonlSink sink("/dev/full", 0, 0.01);
  for (std::int64_t n = 1; n <= 3; ++n) CHECK_NOTHROW(sink.on_step(logged_step(n)));
  const OutletRecord outlet = sink.outlets().at(0);
  CHECK(outlet.name == "steps.jsonl");
  CHECK(outlet.waiting == 3);
  CHECK(outlet.failures >= 1);
  CHECK(outlet.error.find("No space left") != std::string::npos);
  const std::string what = message_of<SpecError>([&] { sink.on_finish({}); });
  CHECK(what.find("/dev/full: 3 lines") != std::string::npos);
  CHECK(what.find("No space left") != std::string::npos);
}

TEST_CASE("a file that cannot be made is a spec error") {
  CHECK_THROWS_AS(JsonlSink("/nonexistent-directory/steps.jsonl", 0), SpecError);
}

TEST_CASE("the step log is read up to a step") {
  const TempDir dir;
  write_file(dir / "steps.jsonl", lines(1, 6));
  std::vector<std::int64_t> seen;
  const StepLogPrefix prefix =
      read_step_log(dir / "steps.jsonl", 4, [&](const StepRecord& r) { seen.push_back(r.step); });
  CHECK(seen == std::vector<std::int64_t>{1, 2, 3, 4});
  CHECK(prefix.bytes == static_cast<std::int64_t>(lines(1, 4).size()));
}

TEST_CASE("the log says how far the attempt before had come") {
  const TempDir dir;
  const std::string path = dir / "steps.jsonl";
  CHECK_FALSE(read_earlier_attempt(path, 0).has_value());
  std::string text;
  for (std::int64_t n = 1; n <= 6; ++n) {
    StepRecord record = logged_step(n);
    record.step_seconds = 0.5;
    record.wall_time = 1e9 + static_cast<double>(n);
    text += to_json_line(record) + "\n";
  }
  write_file(path, text + "{\"step\":7,\"tok");
  const auto killed = read_earlier_attempt(path, 4);
  REQUIRE(killed.has_value());
  CHECK(killed->last_step == 6);
  CHECK(killed->lost_seconds == 1.0);
  CHECK(killed->wall_time == 1e9 + 6);
  const auto stopped = read_earlier_attempt(path, 6);
  REQUIRE(stopped.has_value());
  CHECK(stopped->last_step == 6);
  CHECK(stopped->lost_seconds == 0);
  CHECK(stopped->wall_time == 1e9 + 6);
}

TEST_CASE("the logs say how many attempts there were, since when, and which of their seconds still count") {
  const TempDir dir;
  const std::string steps = dir / "steps.jsonl", events = dir / "events.jsonl";
  CHECK(read_earlier_run(steps, events, 0).attempts == 0);
  std::string text;
  for (std::int64_t n = 1; n <= 6; ++n) {
    StepRecord record = logged_step(n);
    record.step_seconds = 2.5;
    record.time[trainerd::base::LedgerPart::checkpoint] = n == 3 ? 0.5 : 0;
    text += to_json_line(record) + "\n";
  }
  write_file(steps, text + "{\"step\":7,\"tok");
  text.clear();
  double at = 1e9;
  for (const NoticeKind kind : {NoticeKind::start, NoticeKind::warning, NoticeKind::restart, NoticeKind::stop,
                                NoticeKind::resume, NoticeKind::failure})
    text += to_json_line(
                EventRecord{NoticeRecord{.kind = kind, .message = "m", .details = {}, .wall_time = ++at}}) +
            "\n";
  write_file(events, text + "{\"event\":\"resu");
  const EarlierRun run = read_earlier_run(steps, events, 4);
  CHECK(run.attempts == 3);
  CHECK(run.began == 1e9 + 1);
  CHECK(run.useful_seconds == 9.5);
  CHECK(run.ended);
  CHECK(run.interruptions == 2);  // the one before the restart, and the failure
  write_file(events, text +
                         to_json_line(EventRecord{NoticeRecord{
                             .kind = NoticeKind::resume, .message = "m", .details = {}, .wall_time = at}}) +
                         "\n{\"event\":\"fini");
  const EarlierRun killed = read_earlier_run(steps, events, 4);
  CHECK_FALSE(killed.ended);
  CHECK(killed.interruptions == 3);
}

TEST_CASE("the logs say what the wall time of earlier attempts went into") {
  const TempDir dir;
  std::string text;
  for (std::int64_t n = 1; n <= 3; ++n) {
    StepRecord record = logged_step(n);
    record.step_seconds = 2;
    record.time[trainerd::base::LedgerPart::checkpoint] = n == 2 ? 0.5 : 0;
    record.wall_time = 1e9 + 2 * static_cast<double>(n) + (n > 2 ? 3 : 0);
    text += to_json_line(record) + "\n";
  }
  write_file(dir / "steps.jsonl", text);
  NoticeRecord start{.kind = NoticeKind::start, .message = "m", .details = {}, .wall_time = 1e9};
  start.start_seconds = 4;
  const EvaluationRecord evaluation{.step = 2, .loss = 1, .tokens = 1, .seconds = 3, .wall_time = 1e9 + 7};
  write_file(dir / "events.jsonl",
             to_json_line(EventRecord{start}) + "\n" + to_json_line(EventRecord{evaluation}) + "\n");
  const WallLedger all = read_earlier_run(dir / "steps.jsonl", dir / "events.jsonl", 3).wall;
  CHECK(all.seconds(WallPart::start) == Approx(4));
  CHECK(all.seconds(WallPart::useful) == Approx(5.5));
  CHECK(all.seconds(WallPart::save) == Approx(0.5));
  CHECK(all.seconds(WallPart::evaluate) == Approx(3));
  CHECK(all.total() == Approx(13));
  // The next process resumes after step 2: step 3 becomes void and is not in the ledger yet.
  WallLedger resumed = read_earlier_run(dir / "steps.jsonl", dir / "events.jsonl", 2).wall;
  NoticeRecord resume{
      .kind = NoticeKind::resume, .step = 2, .message = "m", .details = {}, .wall_time = 1e9 + 20};
  resume.earlier = EarlierAttempt{.last_step = 3, .lost_seconds = 2, .wall_time = 1e9 + 9};
  add_to(resumed, resume);
  CHECK(resumed.seconds(WallPart::replay) == Approx(2));
  CHECK(resumed.seconds(WallPart::down) == Approx(11));
  CHECK(resumed.total() == Approx(24));
}

TEST_CASE("steps that are done again after a restart are in the file once") {
  const TempDir dir;
  write_file(dir / "steps.jsonl", lines(1, 3));
  JsonlSink sink(dir / "steps.jsonl", 3);
  for (std::int64_t n = 4; n <= 9; ++n) sink.on_step(logged_step(n));
  sink.on_checkpoint({.step = 5, .path = "p"});
  sink.on_restart({.step = 6, .tokens = 600});
  CHECK(read_file(dir / "steps.jsonl") == lines(1, 6));
  sink.on_step(logged_step(7));
  sink.on_restart({.step = 7, .tokens = 700});
  sink.on_step(logged_step(8));
  CHECK(read_file(dir / "steps.jsonl") == lines(1, 8));
  // A snapshot in another node's memory was older than the newest checkpoint.
  sink.on_restart({.step = 4, .tokens = 400});
  CHECK(read_file(dir / "steps.jsonl") == lines(1, 4));
  sink.on_step(logged_step(5));
  CHECK(read_file(dir / "steps.jsonl") == lines(1, 5));
}

TEST_CASE("the ledger of samples has each step once, with the attempt that its line is of") {
  const TempDir dir;
  const std::string path = dir / "samples.jsonl";
  const auto step = [](std::int64_t n, std::vector<std::int64_t> sources = {}) {
    StepRecord record{.step = n, .mfu = {}, .time = {}};
    record.first_sample = 8 * (n - 1), record.samples = 8, record.source_samples = std::move(sources);
    return record;
  };
  const auto expect = [&](const std::vector<std::int64_t>& attempts) {
    std::string text;
    for (std::size_t i = 0; i < attempts.size(); ++i)
      text += "{\"step\":" + std::to_string(i + 1) + ",\"first\":" + std::to_string(8 * i) +
              ",\"count\":8,\"attempt\":" + std::to_string(attempts[i]) + "}\n";
    CHECK(read_file(path) == text);
  };
  {
    SamplesSink sink(path, 0, 1);
    for (std::int64_t n = 1; n <= 3; ++n) sink.on_step(step(n));
    expect({1, 1, 1});
    sink.on_restart({.step = 2, .tokens = 0});
    sink.on_step(step(3)), sink.on_step(step(4));
    expect({1, 1, 2, 2});
  }
  {
    // Killed; resumes after step 1, so the steps of attempt 2 are repeated.
    SamplesSink sink(path, 1, 3);
    CHECK(sink.warning().empty());
    sink.on_step(step(2));
    expect({1, 3});
  }
  {
    SamplesSink sink(path, 0, 1);
    sink.on_step(step(1));
    expect({1});
    sink.on_step(step(2, {5, 3}));
    CHECK(
        read_file(path).ends_with("{\"step\":2,\"first\":8,\"count\":8,\"attempt\":1,\"sources\":[5,3]}\n"));
  }
  {
    SamplesSink sink(dir / "counted.jsonl", 0, 1);
    StepRecord masked = step(1);
    masked.counted_tokens = 17;
    sink.on_step(masked);
    const std::string line = R"({"step":1,"first":0,"count":8,"attempt":1,"counted_tokens":17})";
    CHECK(read_file(dir / "counted.jsonl") == line + "\n");
    CHECK(parse_samples_record(line).counted_tokens == 17);
  }
  write_file(path,
             read_file(path) + "garbage\n" + "{\"step\":3,\"first\":16,\"count\":8,\"attempt\":1}\n{\"st");
  SamplesSink sink(path, 3, 2);
  CHECK(sink.warning().find("samples.jsonl") != std::string::npos);
  sink.on_step(step(4));
  CHECK(
      read_file(path).ends_with("\"step\":3,\"first\":16,\"count\":8,\"attempt\":1}\n{\"step\":4,\"first\":"
                                "24,\"count\":8,\"attempt\":2}\n"));
  CHECK_THROWS_AS(parse_samples_record("{\"step\":1}"), DataError);
}
