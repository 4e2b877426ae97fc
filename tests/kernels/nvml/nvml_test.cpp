// NVML through a stand-in for its library, since machines without a GPU have no NVML.

#include "kernels/nvml/nvml.h"

#include <catch2/catch.hpp>

#include "kernels/base/error.h"
#include "kernels/nvml/xid.h"
#include "tests/kernels/stand_in/nvml_control.h"

namespace trainerd::test {

TEST_CASE("a device's sensors are read by its PCI bus id, in base units", "[nvml]") {
  const kernels::Nvml nvml(TRAINERD_STAND_IN_NVML);
  const kernels::DeviceReading first = nvml.read("0000:65:00.0");
  CHECK(first.pci_bus_id == "0000:65:00.0");
  CHECK(first.name == "NVIDIA H200");
  CHECK(first.uuid == "GPU-65");
  CHECK(first.memory_total_bytes == 150754820096.0);
  CHECK(first.power_watts.value() == Approx(612.345));
  CHECK(first.energy_joules.value() == Approx(9876543.21));
  CHECK(first.sm_clock_hertz == 1.98e9);
  CHECK(first.temperature_celsius == 57.0);
  CHECK(first.ecc_errors == 2.0);
  CHECK(nvml.read("0000:65:00.0").memory_used_bytes.value() == first.memory_used_bytes.value() + 1000);
}

TEST_CASE("values that a device does not support are absent", "[nvml]") {
  const kernels::DeviceReading reading = kernels::Nvml(TRAINERD_STAND_IN_NVML).read("0000:CA:00.0");
  CHECK(reading.name == "NVIDIA L40S");
  CHECK_FALSE(reading.power_watts);
  CHECK_FALSE(reading.energy_joules);
  CHECK_FALSE(reading.ecc_errors);
  CHECK(reading.temperature_celsius == 57.0);
}

TEST_CASE("reasons of lower clocks and errors of active NVLinks are read", "[nvml]") {
  const kernels::Nvml nvml(TRAINERD_STAND_IN_NVML);
  const NvmlControl control;
  kernels::DeviceReading reading = nvml.read("0000:65:00.0");
  CHECK(reading.throttle_reasons == kernels::throttle::kPowerCap);
  // Replays and failed checksums of data; two of the four links are active.
  CHECK(reading.nvlink_errors == std::map<int, double>{{0, 0}, {1, 6}});
  CHECK(nvml.read("0000:CA:00.0").nvlink_errors.empty());
  control.set({.throttle_reasons = 0x48, .replays = 9});
  reading = nvml.read("0000:65:00.0");
  CHECK(reading.throttle_reasons == (kernels::throttle::kHardware | kernels::throttle::kHardwareThermal));
  CHECK(reading.nvlink_errors.at(1) == 10);
  control.set({.lost = true});
  reading = nvml.read("0000:65:00.0");
  CHECK(reading.lost);
  CHECK(reading.pci_bus_id == "0000:65:00.0");
}

TEST_CASE("XIDs come with the device that they are of", "[nvml]") {
  kernels::Nvml nvml(TRAINERD_STAND_IN_NVML);
  const NvmlControl control;
  control.xid(79);
  CHECK_FALSE(nvml.next_xid(0));  // it does not listen
  REQUIRE(nvml.listen({"0000:CA:00.0", "0000:65:00.0"}));
  const auto xid = nvml.next_xid(10);
  REQUIRE(xid);
  CHECK(xid->number == 79);
  CHECK(xid->pci_bus_id == "0000:65:00.0");
  CHECK_FALSE(nvml.next_xid(0.01));
  CHECK_FALSE(kernels::Nvml(TRAINERD_STAND_IN_NVML).listen({"0000:CA:00.0"}));
}

// Numbers and meanings by NVIDIA's catalogue of Xid errors.
TEST_CASE("an XID has a meaning, and is of the device, of the program, or a record", "[nvml]") {
  using kernels::XidClass;
  CHECK(kernels::text_of(kernels::xid_of(79)) == "XID 79: the GPU has fallen off the bus");
  CHECK(kernels::text_of(kernels::xid_of(48)) == "XID 48: double-bit ECC error");
  CHECK(kernels::xid_of(74).whose == XidClass::device);
  CHECK(kernels::xid_of(95).whose == XidClass::device);
  CHECK(kernels::xid_of(13).whose == XidClass::program);
  CHECK(kernels::xid_of(31).whose == XidClass::program);
  CHECK(kernels::xid_of(63).whose == XidClass::record);
  CHECK(kernels::text_of(kernels::xid_of(999)) == "XID 999: see NVIDIA's catalogue of Xid errors");
  CHECK(kernels::xid_of(999).whose == XidClass::device);
}

TEST_CASE("devices are counted; a library that is not there has none", "[nvml]") {
  CHECK(kernels::count_gpus(TRAINERD_STAND_IN_NVML) == 2);
  CHECK(kernels::count_gpus("libnvidia-ml-of-nobody.so.1") == 0);
  CHECK(kernels::count_gpus("libm.so.6") == 0);
}

TEST_CASE("a missing library or device is reported in one line", "[nvml]") {
  CHECK_THROWS_AS(kernels::Nvml("libnvidia-ml-of-nobody.so.1"), base::DeviceError);
  CHECK_THROWS_WITH(kernels::Nvml("libnvidia-ml-of-nobody.so.1"),
                    Catch::Contains("libnvidia-ml-of-nobody.so.1"));
  // Another library: the missing function is named.
  CHECK_THROWS_WITH(kernels::Nvml("libm.so.6"), Catch::Contains("nvmlInit_v2"));
  const kernels::Nvml nvml(TRAINERD_STAND_IN_NVML);
  CHECK_THROWS_WITH(nvml.read("0000:00:00.0"),
                    Catch::Contains("0000:00:00.0") && Catch::Contains("Not Found"));
}

}  // namespace trainerd::test
