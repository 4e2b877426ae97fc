#include "core/run/agent/run_sinks.h"

#include <catch2/catch.hpp>

#include "kernels/base/error.h"
#include "tests/core/run/log_lines.h"

using namespace trainerd::core;
using namespace trainerd;

namespace {

/// A sink with one file, whose state the test sets. It stores the records that it gets.
struct FakeSink final : io::MetricsSink {
  io::OutletRecord* file;
  std::vector<io::OutletRecord>* seen;
  FakeSink(io::OutletRecord& f, std::vector<io::OutletRecord>& s) : file(&f), seen(&s) {}
  void on_step(const io::StepRecord&) override {}
  void on_outlet(const io::OutletRecord& r) override { seen->push_back(r); }
  std::vector<io::OutletRecord> outlets() const override { return {*file}; }
};

}  // namespace

TEST_CASE("a file that starts or stops failing is reported once, its counts whenever they change") {
  io::OutletRecord file{.name = "steps.jsonl", .error = {}};
  std::vector<io::OutletRecord> seen;
  run::RunSinks sinks;
  sinks.add(std::make_unique<FakeSink>(file, seen));
  using Warnings = std::vector<std::string>;
  CHECK(sinks.watch().empty());
  REQUIRE(seen.size() == 1);  // its zero counts are metrics from the start
  CHECK(sinks.watch().empty());
  CHECK(seen.size() == 1);
  file = {.name = "steps.jsonl", .failures = 1, .waiting = 2, .error = "No space left on device"};
  CHECK(sinks.watch() ==
        Warnings{"steps.jsonl cannot be written: No space left on device; training goes on, its lines wait"});
  file.waiting = 3;
  CHECK(sinks.watch().empty());
  CHECK(seen.size() == 3);
  file = {.name = "steps.jsonl", .failures = 1, .waiting = 0, .error = {}};
  CHECK(sinks.watch() == Warnings{"steps.jsonl is written again; nothing lost"});
  file = {.name = "steps.jsonl", .failures = 2, .dropped = 1, .error = "Input/output error"};
  CHECK(sinks.watch() == Warnings{"steps.jsonl cannot be written: Input/output error; training goes on"});
  file.error.clear();
  CHECK(sinks.watch() == Warnings{"steps.jsonl is written again; 1 line lost"});
}

TEST_CASE("of several sinks that fail at the end one is the error, and the others are logged") {
  struct Fails final : io::MetricsSink {
    explicit Fails(std::string text) : what(std::move(text)) {}
    std::string what;
    void on_step(const io::StepRecord&) override {}
    void on_finish(const io::RunSummary&) override { throw base::data_error(what); }
  };
  run::RunSinks sinks;
  for (const std::string what : {"the report", "the log", "the page"})
    sinks.add(std::make_unique<Fails>(what + " cannot be written"));
  const trainerd::test::LogLines log;
  CHECK_THROWS_WITH(sinks.finish({}), "the report cannot be written");
  CHECK(log.text() ==
        "error: at the end of the run: the log cannot be written\n"
        "error: at the end of the run: the page cannot be written\n");
}
