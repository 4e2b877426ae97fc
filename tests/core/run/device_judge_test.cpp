// What an agent makes of the readings of a GPU.

#include "core/run/supervise/device_judge.h"

#include <catch2/catch.hpp>

using namespace trainerd;
using core::run::DeviceFinding;
using core::run::DeviceJudge;

namespace {

kernels::DeviceReading reading(double ecc, std::uint64_t throttle = 0, double link = 7) {
  kernels::DeviceReading r;
  r.pci_bus_id = "0000:65:00.0";
  r.ecc_errors = ecc;
  r.throttle_reasons = throttle;
  r.temperature_celsius = 91;
  r.nvlink_errors = {{0, 0}, {3, link}};
  return r;
}

/// "kind: text", with a ! before what is an error of the device.
std::vector<std::string> texts(const std::vector<DeviceFinding>& found) {
  std::vector<std::string> texts;
  for (const DeviceFinding& f : found) texts.push_back((f.error ? "!" : "") + f.kind + ": " + f.text);
  return texts;
}
using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("memory errors since the reading before are an error of the device; earlier ones are not",
          "[devices]") {
  DeviceJudge judge;
  CHECK(judge.add(reading(2)).empty());
  CHECK(judge.add(reading(2)).empty());
  CHECK(texts(judge.add(reading(3))) ==
        Texts{"!ecc: 1 uncorrected memory error (ECC); 3 since its driver was loaded"});
  CHECK(judge.add(reading(3)).empty());
  CHECK(texts(judge.add(reading(7))) ==
        Texts{"!ecc: 4 uncorrected memory errors (ECC); 7 since its driver was loaded"});
}

TEST_CASE("errors of an NVLink are told with its number, and again when they have doubled", "[devices]") {
  DeviceJudge judge;
  CHECK(judge.add(reading(0, 0, 7)).empty());
  CHECK(texts(judge.add(reading(0, 0, 10))) ==
        Texts{"nvlink: NVLink 3: 3 errors since the run watches it (replays, recoveries, failed checksums), "
              "corrected by the hardware"});
  CHECK(judge.add(reading(0, 0, 12)).empty());
  CHECK(judge.add(reading(0, 0, 13)).size() == 1);
}

TEST_CASE("lower clocks are told when they last, and when they are over; a power limit is none of it",
          "[devices]") {
  DeviceJudge judge;
  const auto times = [&](int count, std::uint64_t reasons) {
    Texts all;
    for (int i = 0; i < count; ++i)
      for (const std::string& text : texts(judge.add(reading(0, reasons)))) all.push_back(text);
    return all;
  };
  using namespace kernels::throttle;
  CHECK(times(9, kPowerCap).empty());
  CHECK(times(2, kSoftwareThermal).empty());
  CHECK(times(1, 0).empty());
  CHECK(times(2, kHardware | kHardwareThermal).empty());
  CHECK(times(5, kHardware | kHardwareThermal) ==
        Texts{"thermal: its clocks are lowered because of its temperature, at 91 degrees Celsius"});
  CHECK(times(2, kPowerCap).empty());
  CHECK(
      times(1, kPowerCap) ==
      Texts{
          "thermal: its clocks are not lowered any more because of its temperature, at 91 degrees Celsius"});
  CHECK(times(3, kPowerBrake) ==
        Texts{"power: its clocks are lowered because of its power supply (power brake)"});
}

TEST_CASE("a lost device is told once", "[devices]") {
  DeviceJudge judge;
  CHECK(judge.add(reading(2)).empty());
  kernels::DeviceReading lost;
  lost.lost = true;
  CHECK(texts(judge.add(lost)) == Texts{"!lost: the driver does not reach it any more"});
  CHECK(judge.add(lost).empty());
}

TEST_CASE("an XID of the device is an error of it, one of the program is a note", "[devices]") {
  CHECK(texts({DeviceJudge::finding_of(79)}) == Texts{"!xid: XID 79: the GPU has fallen off the bus"});
  CHECK(texts({DeviceJudge::finding_of(31)}) ==
        Texts{"note: XID 31: GPU memory page fault; of the program that ran on it, not of the device"});
  CHECK(texts({DeviceJudge::finding_of(63)}) ==
        Texts{"note: XID 63: ECC page retirement or row remapping was recorded"});
}
