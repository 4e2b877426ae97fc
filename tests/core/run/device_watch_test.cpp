#include "core/run/agent/device_watch.h"

#include <poll.h>

#include <catch2/catch.hpp>

#include "tests/kernels/stand_in/nvml_control.h"

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

TEST_CASE("an XID is reported at once, and a lost device instead of its reading", "[devices]") {
  const test::NvmlControl control;
  core::run::DeviceWatch watch({"0000:65:00.0"}, 3600, TRAINERD_STAND_IN_NVML);
  CHECK(next(watch).readings.size() == 1);
  control.xid(48), control.xid(63);
  std::vector<int> numbers;
  while (numbers.size() < 2)
    for (const kernels::DeviceXid& xid : next(watch).xids) {
      CHECK(xid.pci_bus_id == "0000:65:00.0");
      numbers.push_back(xid.number);
    }
  CHECK(numbers == std::vector<int>{48, 63});
  control.set({.lost = true});
  core::run::DeviceWatch again({"0000:65:00.0"}, 3600, TRAINERD_STAND_IN_NVML);
  CHECK(next(again).readings.at(0).lost);
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
