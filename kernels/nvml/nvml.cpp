#include "kernels/nvml/nvml.h"

#include <dlfcn.h>

#include <array>
#include <type_traits>

#include "kernels/base/error.h"

namespace trainerd::kernels {
namespace {

// The part of NVML's interface (API reference, R580) used here.
using Result = int;
using Device = void*;
struct Memory {
  unsigned long long total, free, used;
};
constexpr Result kSuccess = 0;
constexpr int kClockSm = 1, kTemperatureGpu = 0, kUncorrectedErrors = 1, kSinceDriverLoad = 0;

}  // namespace

struct Nvml::Functions {
  Result (*init)() = nullptr;
  Result (*shutdown)() = nullptr;
  const char* (*error_string)(Result) = nullptr;
  Result (*count)(unsigned*) = nullptr;
  Result (*by_pci_bus_id)(const char*, Device*) = nullptr;
  Result (*name)(Device, char*, unsigned) = nullptr;
  Result (*uuid)(Device, char*, unsigned) = nullptr;
  Result (*memory)(Device, Memory*) = nullptr;
  Result (*power)(Device, unsigned*) = nullptr;             ///< milliwatts
  Result (*energy)(Device, unsigned long long*) = nullptr;  ///< millijoules
  Result (*clock)(Device, int, unsigned*) = nullptr;        ///< MHz
  Result (*temperature)(Device, int, unsigned*) = nullptr;
  Result (*ecc_errors)(Device, int, int, unsigned long long*) = nullptr;
};

Nvml::Nvml(const std::string& library) : f_(std::make_unique<Functions>()) {
  // Never closed, because it may have threads of its own.
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) throw base::device_error("no readings of devices: " + std::string(::dlerror()));
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
    if (function == nullptr)
      throw base::device_error("no readings of devices: " + library + " has no " + symbol +
                               ": update the driver");
  };
  find(f_->init, "nvmlInit_v2");
  find(f_->shutdown, "nvmlShutdown");
  find(f_->error_string, "nvmlErrorString");
  find(f_->count, "nvmlDeviceGetCount_v2");
  find(f_->by_pci_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
  find(f_->name, "nvmlDeviceGetName");
  find(f_->uuid, "nvmlDeviceGetUUID");
  find(f_->memory, "nvmlDeviceGetMemoryInfo");
  find(f_->power, "nvmlDeviceGetPowerUsage");
  find(f_->energy, "nvmlDeviceGetTotalEnergyConsumption");
  find(f_->clock, "nvmlDeviceGetClockInfo");
  find(f_->temperature, "nvmlDeviceGetTemperature");
  find(f_->ecc_errors, "nvmlDeviceGetTotalEccErrors");
  if (const Result result = f_->init(); result != kSuccess)
    throw base::device_error("no readings of devices: NVML says " + std::string(f_->error_string(result)));
}

Nvml::~Nvml() { f_->shutdown(); }

int Nvml::device_count() const {
  unsigned count = 0;
  return f_->count(&count) == kSuccess ? static_cast<int>(count) : 0;
}

int count_gpus(const std::string& library) {
  try {
    return Nvml(library).device_count();
  } catch (const base::DeviceError&) {
    return 0;
  }
}

DeviceReading Nvml::read(const std::string& pci_bus_id) const {
  Device device = nullptr;
  if (const Result result = f_->by_pci_bus_id(pci_bus_id.c_str(), &device); result != kSuccess)
    throw base::device_error("no readings of the device at " + pci_bus_id + ": NVML says " +
                             f_->error_string(result));
  DeviceReading reading;
  reading.pci_bus_id = pci_bus_id;
  std::array<char, 96> text{};
  if (f_->name(device, text.data(), text.size()) == kSuccess) reading.name = text.data();
  if (f_->uuid(device, text.data(), text.size()) == kSuccess) reading.uuid = text.data();
  if (Memory memory{}; f_->memory(device, &memory) == kSuccess) {
    reading.memory_used_bytes = static_cast<double>(memory.used);
    reading.memory_total_bytes = static_cast<double>(memory.total);
  }
  unsigned value = 0;
  if (f_->power(device, &value) == kSuccess) reading.power_watts = 1e-3 * value;
  if (f_->clock(device, kClockSm, &value) == kSuccess) reading.sm_clock_hertz = 1e6 * value;
  if (f_->temperature(device, kTemperatureGpu, &value) == kSuccess) reading.temperature_celsius = value;
  unsigned long long energy = 0, errors = 0;
  if (f_->energy(device, &energy) == kSuccess) reading.energy_joules = 1e-3 * static_cast<double>(energy);
  if (f_->ecc_errors(device, kUncorrectedErrors, kSinceDriverLoad, &errors) == kSuccess)
    reading.ecc_errors = static_cast<double>(errors);
  return reading;
}

}  // namespace trainerd::kernels
