#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "io/http/http_client.h"
#include "io/tracking/event_file.h"
#include "io/tracking/scalars.h"
#include "io/tracking/tracking.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using namespace trainerd::io;
using namespace trainerd::test;
using namespace std::string_literals;

namespace {

std::vector<std::string> files_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return {names.begin(), names.end()};
}

}  // namespace

TEST_CASE("crc32c gives the published values", "[tracking]") {
  // From RFC 3720, appendix B.4, and the check value of the CRC catalogue.
  CHECK(crc32c("123456789") == 0xe3069283U);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aaU);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43U);
  CHECK(crc32c("") == 0U);
}

TEST_CASE("events are Event messages of TensorFlow's schema, byte by byte", "[tracking]") {
  // Output of protoc --encode for event.proto.
  const std::string wall_time_1 = "\x09\x00\x00\x00\x00\x00\x00\xf0\x3f"s;
  CHECK(version_event(1) == wall_time_1 + "\x1a\x0d" + "brain.Event:2");
  CHECK(start_event(1, 300) == wall_time_1 + "\x10\xac\x02" + "\x3a\x02\x08\x01");
  CHECK(scalars_event(1, 3, {{"loss", 0.5}}) ==
        wall_time_1 + "\x10\x03" + "\x2a\x0d" + "\x0a\x0b" + "\x0a\x04loss" + "\x15\x00\x00\x00\x3f"s);
}

TEST_CASE("an evaluation has values of its first set, and of each set and set of questions by name",
          "[tracking]") {
  using Scalars = std::vector<std::pair<std::string, double>>;
  EvaluationRecord record{.step = 3, .loss = 0, .tokens = 64, .seconds = 1};
  CHECK(scalars_of(record) == Scalars{{"validation_loss", 0}, {"validation_perplexity", 1}});
  record.bits_per_byte = 0.5;
  record.sets = {{.set = "web", .loss = 0, .tokens = 64, .bits_per_byte = 0.5},
                 {.set = "code", .loss = 0, .tokens = 32}};
  record.choices = {{.set = "quiz", .questions = 8, .accuracy = 0.25, .accuracy_norm = 0.75}};
  CHECK(scalars_of(record) == Scalars{{"validation_loss", 0},
                                      {"validation_perplexity", 1},
                                      {"validation_bits_per_byte", 0.5},
                                      {"validation_loss/web", 0},
                                      {"validation_perplexity/web", 1},
                                      {"validation_bits_per_byte/web", 0.5},
                                      {"validation_loss/code", 0},
                                      {"validation_perplexity/code", 1},
                                      {"accuracy/quiz", 0.25},
                                      {"accuracy_norm/quiz", 0.75}});
}

TEST_CASE("a record is its length and its bytes, each with a masked checksum", "[tracking]") {
  const std::string record = tf_record("abc");
  REQUIRE(record.size() == 8 + 4 + 3 + 4);
  CHECK(record.substr(0, 8) == "\x03\0\0\0\0\0\0\0"s);
  CHECK(record.substr(12, 3) == "abc");
  // The empty record, which every TFRecord reader's tests contain.
  CHECK(tf_record("") == "\0\0\0\0\0\0\0\0\x29\x03\x98\x07\xd8\xea\x82\xa2"s);
}

TEST_CASE("event files of later starts sort after those of earlier ones", "[tracking]") {
  const TempDir dir;
  const std::string folder = dir / "tensorboard";
  std::vector<std::string> made;
  // The third start's clock was set back.
  for (const double at : {1700000000.0, 1700000000.5, 1600000000.0})
    made.push_back(std::filesystem::path(EventFile(folder, at).path()).filename());
  CHECK(files_in(folder) == made);
}

TEST_CASE("the sink of a run writes one file with its start, steps and restarts", "[tracking]") {
  const TempDir dir;
  const std::string folder = dir / "tensorboard";
  {
    TensorboardSink sink(folder, 4);
    sink.on_step({.step = 5, .mfu = {}, .time = {}});
    sink.on_restart({.step = 4});
    sink.on_finish({});
    CHECK(sink.outlets() == std::vector<OutletRecord>{{.name = "tensorboard", .error = {}}});
  }
  const auto names = files_in(folder);
  REQUIRE(names.size() == 1);
  const std::string text = read_file(folder + "/" + names[0]);
  CHECK(text.find("brain.Event:2") == 8 + 4 + 9 + 2);
  std::size_t starts = 0;
  for (std::size_t at = 0; (at = text.find("\x10\x05\x3a\x02\x08\x01", at)) != std::string::npos; ++at)
    ++starts;
  CHECK(starts == 2);
  CHECK(text.find("time/compute") != std::string::npos);
}

TEST_CASE("a folder that cannot be made is an error that names it", "[tracking]") {
  const TempDir dir;
  write_file(dir / "file", "");
  CHECK_THROWS_AS(TensorboardSink(dir / "file", 0), trainerd::base::SpecError);
}

TEST_CASE("a request without an answer ends with the reason", "[tracking]") {
  HttpClient client;
  std::string why;
  CHECK(!client.send({.url = "http://127.0.0.1:1/", .seconds = 5}, why));
  CHECK(!why.empty());
  client.abort();
  why.clear();
  CHECK(!client.send({.url = "http://127.0.0.1:1/", .seconds = 5}, why));
  CHECK(!why.empty());
}

TEST_CASE("parts of URLs are encoded", "[tracking]") {
  CHECK(url_encoded("a-b.c_d~9") == "a-b.c_d~9");
  CHECK(url_encoded("a b/\xc3\xa4&?") == "a%20b%2F%C3%A4%26%3F");
}

TEST_CASE("a server that is down delays nothing, its records wait and the oldest are dropped", "[tracking]") {
  const TempDir dir;
  std::vector<std::string> warnings;
  MlflowSink sink({.server = {.uri = "http://127.0.0.1:1"}, .state_path = dir / "mlflow.json", .name = "n"},
                  [&](const std::string& warning) { warnings.push_back(warning); }, {.max_waiting = 3});
  sink.on_start({});
  for (std::int64_t step = 1; step <= 5; ++step) sink.on_step({.step = step, .mfu = {}, .time = {}});
  CHECK(sink.outlets()[0].waiting == 3);
  CHECK(sink.outlets()[0].dropped == 2);
  sink.on_finish({});
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("values of 5 steps or evaluations are missing") != std::string::npos);
  CHECK(sink.outlets()[0].failures >= 1);
  CHECK(!std::filesystem::exists(dir / "mlflow.json"));
}
