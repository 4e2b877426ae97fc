#include "io/metrics/event_log.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "io/metrics/sinks.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using trainerd::base::DataError;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

EvaluationRecord evaluation(std::int64_t n) { return {.step = n, .loss = 0.1, .tokens = 64, .seconds = 0.5}; }
CheckpointRecord checkpoint(std::int64_t n) {
  return {.step = n, .bytes = 1000, .snapshot_seconds = 0.25, .write_seconds = 2, .path = "c/\"x\""};
}

std::vector<std::string> events(const std::string& path, std::int64_t last_step) {
  std::vector<std::string> seen;
  read_event_log(path, last_step, [&](const EventRecord& e) {
    const auto* notice = std::get_if<NoticeRecord>(&e);
    seen.push_back((notice != nullptr ? std::string(name_of(notice->kind)) + " "
                    : e.index() == 0  ? "evaluation "
                                      : "checkpoint ") +
                   std::to_string(std::visit([](const auto& r) { return r.step; }, e)));
  });
  return seen;
}

using Seen = std::vector<std::string>;

}  // namespace

TEST_CASE("an event is one line of the documented names and comes back the same") {
  CHECK(
      to_json_line(EventRecord{evaluation(7)}) ==
      R"({"event":"evaluation","step":7,"loss":0.1,"tokens":64,"perplexity":1.1051709180756477,"seconds":0.5})");
  CHECK(
      to_json_line(EventRecord{checkpoint(8)}) ==
      R"({"event":"checkpoint","step":8,"bytes":1000,"snapshot_seconds":0.25,"write_seconds":2.0,"path":"c/\"x\""})");
  const auto back = std::get<CheckpointRecord>(parse_event_record(to_json_line(EventRecord{checkpoint(8)})));
  CHECK(back.step == 8);
  CHECK(back.bytes == 1000);
  CHECK(back.snapshot_seconds == 0.25);
  CHECK(back.write_seconds == 2);
  CHECK(back.path == "c/\"x\"");
  EvaluationRecord timed = evaluation(7);
  timed.wall_time = 1763776200.12345;
  timed.loss = 0;
  CHECK(
      to_json_line(EventRecord{timed}) ==
      R"({"event":"evaluation","step":7,"loss":0.0,"tokens":64,"perplexity":1.0,"seconds":0.5,"wall_time":1763776200.123})");
  CHECK(std::get<EvaluationRecord>(parse_event_record(to_json_line(EventRecord{timed}))).wall_time ==
        1763776200.123);
  EvaluationRecord several = evaluation(7);
  several.loss = 0;
  several.sets = {{.set = "web", .loss = 0, .tokens = 64, .bits_per_byte = 0.5},
                  {.set = "code", .loss = 0, .tokens = 32}};
  several.choices = {{.set = "quiz", .questions = 8, .accuracy = 0.25, .accuracy_norm = 0.5}};
  const std::string line = to_json_line(EventRecord{several});
  CHECK(
      line ==
      R"({"event":"evaluation","step":7,"loss":0.0,"tokens":64,"perplexity":1.0,"seconds":0.5,"sets":[{"set":"web",)"
      R"("loss":0.0,"tokens":64,"perplexity":1.0,"bits_per_byte":0.5},{"set":"code","loss":0.0,"tokens":32,)"
      R"("perplexity":1.0}],"choices":[{"set":"quiz","questions":8,"accuracy":0.25,"accuracy_norm":0.5}]})");
  CHECK(to_json_line(parse_event_record(line)) == line);
  CHECK_THROWS_AS(
      parse_event_record(R"({"event":"evaluation","step":1,"loss":1,"tokens":1,"seconds":1,"sets":{}})"),
      DataError);
  EvaluationRecord lost = evaluation(1);
  lost.loss = std::nan("");
  CHECK(std::isnan(std::get<EvaluationRecord>(parse_event_record(to_json_line(EventRecord{lost}))).loss));
  for (const std::string text :
       {"", "{}", R"({"event":"party","step":1})", R"({"event":"evaluation","step":1})"})
    CHECK_THROWS_AS(parse_event_record(text), DataError);
}

TEST_CASE("a notice is one line with its kind as the event, and comes back the same") {
  const NoticeRecord notice{
      NoticeKind::resume, 12, "resuming from \"x\"", {"optimizer.lr: 0.1 -> 0.2", "data: a file more"}};
  const std::string line = to_json_line(EventRecord{notice});
  CHECK(
      line ==
      R"({"event":"resume","step":12,"message":"resuming from \"x\"","details":["optimizer.lr: 0.1 -> 0.2","data: a file more"]})");
  const auto back = std::get<NoticeRecord>(parse_event_record(line));
  CHECK(back.kind == notice.kind);
  CHECK(back.step == notice.step);
  CHECK(back.message == notice.message);
  CHECK(back.details == notice.details);
  CHECK_FALSE(back.earlier.has_value());
  NoticeRecord again = notice;
  again.earlier = EarlierAttempt{.last_step = 17, .lost_seconds = 2.5, .wall_time = 1e9};
  const auto earlier = std::get<NoticeRecord>(parse_event_record(to_json_line(EventRecord{again}))).earlier;
  REQUIRE(earlier.has_value());
  CHECK(earlier->last_step == 17);
  CHECK(earlier->lost_seconds == 2.5);
  CHECK(earlier->wall_time == 1e9);
  again.kind = NoticeKind::recovered;
  again.recovery = Recovery{.noticed = 1e9,
                            .decide_seconds = 0.5,
                            .ready_seconds = 0.25,
                            .groups_seconds = 0.125,
                            .total_seconds = 1};
  const auto recovered = std::get<NoticeRecord>(parse_event_record(to_json_line(EventRecord{again})));
  CHECK(recovered.kind == NoticeKind::recovered);
  REQUIRE(recovered.recovery.has_value());
  CHECK(recovered.recovery->noticed == 1e9);
  CHECK(recovered.recovery->decide_seconds == 0.5);
  CHECK(recovered.recovery->ready_seconds == 0.25);
  CHECK(recovered.recovery->groups_seconds == 0.125);
  CHECK(recovered.recovery->total_seconds == 1);
  for (const std::string text : {R"({"event":"stop","step":1,"message":"m"})",
                                 R"({"event":"stop","step":1,"message":"m","details":"d"})",
                                 R"({"event":"stop","step":1,"message":"m","details":[1]})"})
    CHECK_THROWS_AS(parse_event_record(text), DataError);
}

TEST_CASE("a resumed run keeps events of steps that it repeats, and drops their evaluations") {
  const TempDir dir;
  const std::string path = dir / "events.jsonl";
  {
    EventLogSink sink(path, 0);
    sink.on_notice({NoticeKind::start, 0, "start", {}});
    sink.on_evaluation(evaluation(10));
    sink.on_notice({NoticeKind::failure, 12, "rank 1 was lost", {}});
  }
  const EventLogSink resumed(path, 5);
  CHECK(events(path, 100) == Seen{"start 0", "failure 12"});
}

TEST_CASE("a resumed run keeps the events up to its step, in any order") {
  const TempDir dir;
  const std::string path = dir / "events.jsonl";
  {
    EventLogSink sink(path, 0);
    sink.on_evaluation(evaluation(5));
    sink.on_evaluation(evaluation(10));
    sink.on_checkpoint(checkpoint(5));  // reached the disk only now
    sink.on_checkpoint(checkpoint(10));
  }
  CHECK(events(path, 10) == Seen{"evaluation 5", "evaluation 10", "checkpoint 5", "checkpoint 10"});
  CHECK(events(path, 7) == Seen{"evaluation 5", "checkpoint 5"});
  {
    EventLogSink sink(path, 5);
    sink.on_evaluation(evaluation(6));
  }
  CHECK(events(path, 100) == Seen{"evaluation 5", "checkpoint 5", "evaluation 6"});
  { EventLogSink fresh(path, 0); }
  CHECK(read_file(path).empty());
}

TEST_CASE("a torn last event is dropped and a garbled one before it is set aside") {
  const TempDir dir;
  const std::string path = dir / "events.jsonl", line = to_json_line(EventRecord{evaluation(1)});
  write_file(path, line + "\n" + line.substr(0, 20));
  { EventLogSink sink(path, 9); }
  CHECK(read_file(path) == line + "\n");
  write_file(path, line);  // lost only its line end
  { EventLogSink sink(path, 9); }
  CHECK(read_file(path) == line + "\n");
  write_file(path, "garbage\n" + line + "\n");
  CHECK(EventLogSink(path, 9).warning().find("events.jsonl: line 1 ") != std::string::npos);
  CHECK(read_file(path) == line + "\n");
  CHECK(read_file(path + ".garbled") == "garbage\n");
  CHECK(events(dir / "absent", 9).empty());
}

TEST_CASE("evaluations after a restart's step are dropped, checkpoints and notices stay") {
  const TempDir dir;
  const std::string path = dir / "events.jsonl";
  EventLogSink sink(path, 0);
  const auto notice = [&](std::int64_t n) {
    sink.on_notice({.kind = NoticeKind::warning, .step = n, .message = "w", .details = {}});
  };
  notice(0);
  sink.on_evaluation(evaluation(10));
  sink.on_checkpoint(checkpoint(10));
  sink.on_evaluation(evaluation(15));
  notice(16);
  sink.on_evaluation(evaluation(20));
  sink.on_checkpoint(checkpoint(12));
  sink.on_restart({.step = 15, .tokens = 1});
  CHECK(events(path, 99) ==
        Seen{"warning 0", "evaluation 10", "checkpoint 10", "evaluation 15", "warning 16", "checkpoint 12"});
  sink.on_notice({.kind = NoticeKind::restart, .step = 15, .message = "r", .details = {}});
  sink.on_evaluation(evaluation(20));
  CHECK(events(path, 99) == Seen{"warning 0", "evaluation 10", "checkpoint 10", "evaluation 15", "warning 16",
                                 "checkpoint 12", "restart 15", "evaluation 20"});
  // A snapshot in another node's memory was older than the newest complete checkpoint.
  sink.on_checkpoint(checkpoint(20));
  sink.on_restart({.step = 8, .tokens = 1});
  CHECK(events(path, 99) ==
        Seen{"warning 0", "checkpoint 10", "warning 16", "checkpoint 12", "restart 15", "checkpoint 20"});
}
