// NVML through a stand-in for its library, since machines without a GPU have no NVML.

#include "kernels/nvml/nvml.h"

#include <catch2/catch.hpp>

#include "kernels/base/error.h"

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

TEST_CASE("devices are counted; without the library there are none", "[nvml]") {
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
