#include <catch2/catch.hpp>

#include "io/metrics/sinks.h"
#include "io/metrics/step_log.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using trainerd::base::DataError;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

StepRecord step(std::int64_t n) {
  return {.step = n, .tokens = n * 100, .loss = 1.0 / static_cast<double>(n), .mfu = {}, .time = {}};
}

std::string lines(std::int64_t first, std::int64_t last) {
  std::string text;
  for (std::int64_t n = first; n <= last; ++n) text += to_json_line(step(n)) + "\n";
  return text;
}

}  // namespace

TEST_CASE("every step is in the file as soon as it is reported") {
  const TempDir dir;
  JsonlSink sink(dir / "steps.jsonl", 0);
  for (std::int64_t n = 1; n <= 3; ++n) {
    sink.on_step(step(n));
    CHECK(read_file(dir / "steps.jsonl") == lines(1, n));
  }
}

TEST_CASE("a fresh run starts a fresh file") {
  const TempDir dir;
  write_file(dir / "steps.jsonl", lines(1, 5));
  JsonlSink sink(dir / "steps.jsonl", 0);
  sink.on_step(step(1));
  CHECK(read_file(dir / "steps.jsonl") == lines(1, 1));
}

TEST_CASE("a resumed run drops the steps it does again and a torn last line") {
  const TempDir dir;
  for (const std::string& tail :
       {lines(7, 9), lines(7, 7) + "{\"step\":8,\"tok", std::string("{\"st"), std::string("garbage\n")}) {
    write_file(dir / "steps.jsonl", lines(1, 6) + tail);
    JsonlSink sink(dir / "steps.jsonl", 6);
    CHECK(read_file(dir / "steps.jsonl") == lines(1, 6));
    sink.on_step(step(7));
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

TEST_CASE("a damaged line in the middle is named, not dropped") {
  const TempDir dir;
  const std::string content = lines(1, 2) + "garbage\n" + lines(4, 6);
  write_file(dir / "steps.jsonl", content);
  CHECK(message_of<DataError>([&] { JsonlSink(dir / "steps.jsonl", 6); }).find("steps.jsonl:3:") !=
        std::string::npos);
  CHECK(read_file(dir / "steps.jsonl") == content);
}

TEST_CASE("a full disk is a data error that names the file") {
  JsonlSink sink("/dev/full", 0);
  const std::string what = message_of<DataError>([&] { sink.on_step(step(1)); });
  CHECK(what.find("/dev/full") != std::string::npos);
  CHECK(what.find("No space left") != std::string::npos);
}

TEST_CASE("a file that cannot be made is a data error") {
  CHECK_THROWS_AS(JsonlSink("/nonexistent-directory/steps.jsonl", 0), DataError);
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
