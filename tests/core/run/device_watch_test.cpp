#include "core/run/agent/device_watch.h"

#include <poll.h>

#include <catch2/catch.hpp>

using namespace trainerd;

namespace {

core::run::DeviceWatch::Taken next(core::run::DeviceWatch& watch) {
  pollfd p{watch.event_fd(), POLLIN, 0};
  REQUIRE(::poll(&p, 1, 10'000) == 1);
  return watch.take();
}

}  // namespace

TEST_CASE("devices are read again and again, in the order asked for", "[devices]") {
  core::run::DeviceWatch watch({"0000:CA:00.0", "0000:65:00.0"}, 0.01, TRAINERD_STAND_IN_NVML);
  const auto first = next(watch), second = next(watch);
  for (const auto& taken : {first, second}) {
    CHECK(taken.problem.empty());
    REQUIRE(taken.readings.size() == 2);
    CHECK(taken.readings[0].name == "NVIDIA L40S");
    CHECK(taken.readings[1].name == "NVIDIA H200");
  }
  CHECK(second.readings[0].memory_used_bytes.value() > first.readings[0].memory_used_bytes.value());
}

TEST_CASE("without NVML, or without the device, there is one word and no reading", "[devices]") {
  for (const auto& [device, library] :
       {std::pair{"0000:65:00.0", "libnvidia-ml-of-nobody.so.1"}, {"0000:01:00.0", TRAINERD_STAND_IN_NVML}}) {
    core::run::DeviceWatch watch({device}, 0.01, library);
    const auto reported = next(watch);
    CHECK(reported.readings.empty());
    CHECK_THAT(reported.problem, Catch::Contains("no readings of"));
    pollfd p{watch.event_fd(), POLLIN, 0};
    CHECK(::poll(&p, 1, 100) == 0);
  }
}
