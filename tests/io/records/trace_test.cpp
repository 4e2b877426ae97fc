#include "io/records/trace.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace trainerd::io {
namespace {

TEST_CASE("a trace is Chrome's JSON, in microseconds", "[trace]") {
  const Trace trace{
      .processes = {{3, "rank 3"}},
      .rows = {{3, 1, "com\"pute"}},
      .slices = {
          {.name = "forward",
           .category = "compute",
           .process = 3,
           .row = 1,
           .start_seconds = 1.5,
           .seconds = 0.25e-6,
           .numbers = {{"chunk", 2}},
           .label = "x"},
          {.name = "other", .category = "", .process = 3, .row = 1, .start_seconds = 2, .seconds = 1}}};
  const nlohmann::json json = nlohmann::json::parse(to_chrome_json(trace));
  const auto& events = json["traceEvents"];
  REQUIRE(events.size() == 6);
  CHECK(events[0] ==
        nlohmann::json::parse(R"({"name":"process_name","ph":"M","pid":3,"args":{"name":"rank 3"}})"));
  CHECK(events[2] == nlohmann::json::parse(
                         R"({"name":"thread_name","ph":"M","pid":3,"tid":1,"args":{"name":"com\"pute"}})"));
  CHECK(
      events[4] ==
      nlohmann::json::parse(
          R"({"name":"forward","cat":"compute","ph":"X","pid":3,"tid":1,"ts":1500000.0,"dur":0.25,"cname":"rail_load","args":{"chunk":2,"label":"x"}})"));
  CHECK(events[5]["dur"] == 1e6);
}

TEST_CASE("slices that touch still touch when written", "[trace]") {
  Trace trace;
  double at = 0.1;
  for (int i = 0; i < 1000; ++i) {
    const double seconds = 1e-4 / 3 * (1 + i % 7);
    trace.slices.push_back({.name = "s", .category = "", .start_seconds = at, .seconds = seconds});
    at += seconds;
  }
  const nlohmann::json json = nlohmann::json::parse(to_chrome_json(trace));
  double end = json["traceEvents"][0]["ts"];
  for (const auto& event : json["traceEvents"]) {
    CHECK(event["ts"].get<double>() == Approx(end).margin(1e-6));
    end = event["ts"].get<double>() + event["dur"].get<double>();
  }
}

}  // namespace
}  // namespace trainerd::io
