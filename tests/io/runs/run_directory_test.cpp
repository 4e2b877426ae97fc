#include "io/runs/run_directory.h"

#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/metrics/sinks.h"
#include "io/runs/log_follower.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"
#include "tests/io/temp_dir.h"

namespace base = trainerd::base;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

StepRecord step_record(std::int64_t n, double loss = 2.0) {
  return {.step = n,
          .tokens = n * 100,
          .loss = loss,
          .grad_norm = 1,
          .learning_rate = 1e-3,
          .step_seconds = 0.5,
          .tokens_per_second = 200,
          .mfu = {},
          .time = {{base::LedgerPart::compute, 0.4}, {base::LedgerPart::optimizer, 0.1}},
          .wall_time = 1000.0 + static_cast<double>(n)};
}

NoticeRecord logged_notice(NoticeKind kind, std::int64_t step, double wall_time,
                           const std::string& message = "m") {
  return {.kind = kind, .step = step, .message = message, .details = {}, .wall_time = wall_time};
}

void append_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::app) << text;
}

/// A run directory with a job. Steps and events are appended by the test.
struct LoggedRun {
  TempDir dir;
  LoggedRun() { write_file(dir / "job.yaml", "name: x\n"); }
  void step(std::int64_t n, double loss = 2.0) {
    append_text(dir / "steps.jsonl", to_json_line(step_record(n, loss)) + "\n");
  }
  void notice(NoticeKind kind, std::int64_t step, double wall_time, const std::string& message = "m") {
    append_text(dir / "events.jsonl",
                to_json_line(EventRecord(logged_notice(kind, step, wall_time, message))) + "\n");
  }
};

}  // namespace

TEST_CASE("a log that grows is read from where it was, and a torn last line when it is whole") {
  const TempDir dir;
  LogFollower log(dir / "log");
  std::vector<std::string> seen;
  const auto read = [&] {
    const bool replaced = log.replaced();
    if (replaced) seen.clear();
    log.read([&](const std::string& line) { seen.push_back(line); });
    return replaced;
  };
  CHECK_FALSE(read());
  CHECK(seen.empty());
  write_file(dir / "log", "one\ntwo\nthr");
  CHECK_FALSE(read());
  CHECK(seen == std::vector<std::string>{"one", "two"});
  CHECK_FALSE(read());
  CHECK(seen.size() == 2);
  append_text(dir / "log", "ee\nfour\n");
  CHECK_FALSE(read());
  CHECK(seen == std::vector<std::string>{"one", "two", "three", "four"});
  SECTION("cut back and longer than before when it is read again") {
    write_file(dir / "log", "one\nTWO\nTHREE\nFOUR\nFIVE\n");
    CHECK(read());
    CHECK(seen == std::vector<std::string>{"one", "TWO", "THREE", "FOUR", "FIVE"});
  }
  SECTION("cut back") {
    std::filesystem::resize_file(dir / "log", 4);
    CHECK(read());
    CHECK(seen == std::vector<std::string>{"one"});
  }
  SECTION("removed") {
    std::filesystem::remove(dir / "log");
    CHECK(read());
    CHECK(seen.empty());
    write_file(dir / "log", "new\n");
    CHECK_FALSE(read());
    CHECK(seen == std::vector<std::string>{"new"});
  }
}

TEST_CASE("what is not the directory of a run is refused by name") {
  const TempDir dir;
  write_file(dir / "file", "");
  CHECK(message_of<base::SpecError>([&] {
          RunDirectory run(dir / "none");
        }).find("there is no such directory") != std::string::npos);
  CHECK(message_of<base::SpecError>([&] { RunDirectory run(dir / "file"); }).find("no directory") !=
        std::string::npos);
  CHECK(message_of<base::SpecError>([&] { RunDirectory run(dir.path()); }).find("not the output directory") !=
        std::string::npos);
}

TEST_CASE("a directory is followed while its run goes on") {
  LoggedRun run;
  RunDirectory directory(run.dir.path());
  directory.update();
  CHECK(directory.history().empty());
  run.notice(NoticeKind::start, 0, 1000);
  for (std::int64_t n = 1; n <= 3; ++n) run.step(n);
  directory.update();
  RunStatus status = directory.status(1004);
  CHECK(status.state == RunState::training);
  CHECK(status.step == 3);
  CHECK(status.series.size() == 3);
  CHECK(status.recent_time[0] == Approx(0.4));
  CHECK_FALSE(status.eta_seconds.has_value());  // the number of steps is unknown
  run.step(4, 1.5);
  append_text(run.dir / "steps.jsonl", R"({"step":5,"tok)");
  directory.update();
  CHECK(directory.status(1004).step == 4);
  CHECK(directory.status(1004).last->loss == 1.5);
  CHECK(directory.garbled_lines() == 0);
  append_text(run.dir / "steps.jsonl", "garbage\n");
  directory.update();
  CHECK(directory.garbled_lines() == 1);
}

TEST_CASE("a resumed run that cuts its logs back is read anew") {
  LoggedRun run;
  run.notice(NoticeKind::start, 0, 1000);
  for (std::int64_t n = 1; n <= 8; ++n) run.step(n, 3.0);
  RunDirectory directory(run.dir.path());
  directory.update();
  CHECK(directory.status(1009).step == 8);
  JsonlSink(run.dir / "steps.jsonl", 5);  // as a resume after step 5 does
  run.notice(NoticeKind::resume, 5, 2000);
  for (std::int64_t n = 6; n <= 9; ++n) run.step(n, 1.0);
  directory.update();
  const RunStatus status = directory.status(2009);
  CHECK(status.step == 9);
  CHECK(status.attempts == 2);
  CHECK(status.resumed_after == std::vector<std::int64_t>{5});
  REQUIRE(status.series.size() == 9);
  CHECK(status.series[4].loss.mean() == 3.0);
  CHECK(status.series[5].loss.mean() == 1.0);
}

TEST_CASE("a run of this host that nothing holds and whose address refuses is lost at once") {
  LoggedRun run;
  run.notice(NoticeKind::start, 0, 1000);
  run.step(1);
  std::array<char, 256> host{};
  REQUIRE(::gethostname(host.data(), host.size() - 1) == 0);
  const base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  REQUIRE(::bind(socket.get(), reinterpret_cast<sockaddr*>(&at), size) == 0);
  REQUIRE(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
  std::ofstream(run.dir / "metrics.json")
      << R"([{"targets": ["127.0.0.1:)" << ntohs(at.sin_port) << R"("], "labels": {}}])";
  const auto state_on = [&run](const std::string& name) {
    RunInfo info;
    info.host = name;
    std::ofstream(run.dir / "run.json") << run_json(info, {});
    RunDirectory directory(run.dir.path());
    directory.update();
    return directory.status(1010).state;
  };
  // The port is bound but does not listen: connections are refused, and no other process can get the port.
  CHECK(state_on(host.data()) == RunState::lost);
  CHECK(state_on("another-host") == RunState::training);
  {
    const base::UniqueFd held = base::open_shared(run.dir / ".lock");
    REQUIRE(::flock(held.get(), LOCK_EX | LOCK_NB) == 0);
    CHECK(state_on(host.data()) == RunState::training);
  }
  REQUIRE(::listen(socket.get(), 4) == 0);
  CHECK(state_on(host.data()) == RunState::training);
}

TEST_CASE(
    "how a run ended is its last notice; a run without an end is lost when no process has locked it for "
    "long") {
  LoggedRun run;
  run.notice(NoticeKind::start, 0, 1000);
  run.step(1);
  const auto state_at = [&run](double now) {
    RunDirectory directory(run.dir.path());
    directory.update();
    return directory.status(now).state;
  };
  CHECK(state_at(1010) == RunState::training);
  CHECK(state_at(90000) == RunState::lost);
  {
    const base::UniqueFd held = base::open_shared(run.dir / ".lock");
    REQUIRE(::flock(held.get(), LOCK_EX | LOCK_NB) == 0);
    CHECK(state_at(90000) == RunState::training);
  }
  CHECK(state_at(90000) == RunState::lost);
  run.notice(NoticeKind::failure, 1, 1002, "rank 0 ended by SIGKILL");
  CHECK(state_at(90000) == RunState::failed);
  run.notice(NoticeKind::resume, 1, 1100);
  run.notice(NoticeKind::stop, 1, 1200, "stopped by SIGTERM after step 1");
  CHECK(state_at(90000) == RunState::stopped);
  run.notice(NoticeKind::resume, 1, 1300);
  run.notice(NoticeKind::finish, 1, 1400);
  CHECK(state_at(90000) == RunState::done);
}

TEST_CASE("run.json says what the logs do not, and the pace gives the time that is left") {
  LoggedRun run;
  {
    RunFactsSink facts(run.dir / "run.json");
    RunInfo info;
    info.name = "named";
    info.output = "o";
    info.steps = 100;
    info.memory_planned_bytes = 1000;
    facts.on_start(info);
    facts.on_prediction({5, 20, {{PredictionTerm::Kind::memory_bytes, "memory_bytes", 1000, 900, -0.1}}});
    const double end = base::monotonic_seconds() + 60;
    while (read_file(run.dir / "run.json").find("memory_bytes\"") == std::string::npos)
      REQUIRE(base::monotonic_seconds() < end);
  }
  run.notice(NoticeKind::start, 0, 1000);
  for (std::int64_t n = 1; n <= 40; ++n) run.step(n);  // one per second of wall time
  RunDirectory directory(run.dir.path());
  directory.update();
  const RunStatus status = directory.status(1041);
  CHECK(status.info.name == "named");
  CHECK(status.info.steps == 100);
  CHECK(status.eta_seconds.value() == Approx(60));
  CHECK(status.memory_planned_bytes == 1000);
  CHECK(status.memory_used_bytes == 900);
}

TEST_CASE("the history of a run does not grow with it") {
  RunHistory history;
  for (std::int64_t n = 1; n <= 20000; ++n) {
    history.add(step_record(n));
    history.add(EvaluationRecord{.step = n, .loss = 1, .tokens = 1, .seconds = 1});
    history.add(CheckpointRecord{.step = n, .path = "p"});
    history.add(logged_notice(NoticeKind::warning, n, 1));
  }
  const std::string text = to_json(history.status(1));
  CHECK(text.size() < 300000);
  CHECK(history.status(1).evaluations.back().step == 20000);
  CHECK(history.status(1).series.back().last_step == 20000);
}
