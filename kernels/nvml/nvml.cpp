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
struct EventData {
  Device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
constexpr Result kSuccess = 0, kGpuIsLost = 15;
constexpr unsigned long long kXidCriticalError = 0x8;
constexpr unsigned kMaxLinks = 18, kLinkActive = 1;
constexpr int kLinkReplays = 0, kLinkRecoveries = 1, kLinkFlitChecksums = 2, kLinkDataChecksums = 3;
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
  // Null where the library is older or newer than they are:
  Result (*throttle_reasons)(Device, unsigned long long*) = nullptr;
  Result (*link_state)(Device, unsigned, unsigned*) = nullptr;
  Result (*link_errors)(Device, unsigned, int, unsigned long long*) = nullptr;
  Result (*make_events)(void**) = nullptr;
  Result (*free_events)(void*) = nullptr;
  Result (*register_events)(Device, unsigned long long, void*) = nullptr;
  Result (*wait_event)(void*, EventData*, unsigned) = nullptr;  ///< milliseconds

  std::string text(Device device, Result (*of)(Device, char*, unsigned)) const {
    std::array<char, 96> text{};
    return of(device, text.data(), text.size()) == kSuccess ? text.data() : "";
  }
  /// Of all links that are active.
  std::map<int, double> nvlink_errors(Device device) const {
    std::map<int, double> errors;
    if (link_state == nullptr || link_errors == nullptr) return errors;
    for (unsigned link = 0; link < kMaxLinks; ++link) {
      unsigned state = 0;
      if (link_state(device, link, &state) != kSuccess || state != kLinkActive) continue;
      for (const int counter : {kLinkReplays, kLinkRecoveries, kLinkFlitChecksums, kLinkDataChecksums})
        if (unsigned long long more = 0; link_errors(device, link, counter, &more) == kSuccess)
          errors[static_cast<int>(link)] += static_cast<double>(more);
    }
    return errors;
  }
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
  const auto find_if_there = [&](auto& function, const char* symbol) {
    if (function == nullptr)
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
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
  find_if_there(f_->throttle_reasons, "nvmlDeviceGetCurrentClocksEventReasons");
  find_if_there(f_->throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");  // before R535
  find_if_there(f_->link_state, "nvmlDeviceGetNvLinkState");
  find_if_there(f_->link_errors, "nvmlDeviceGetNvLinkErrorCounter");
  find_if_there(f_->make_events, "nvmlEventSetCreate");
  find_if_there(f_->free_events, "nvmlEventSetFree");
  find_if_there(f_->register_events, "nvmlDeviceRegisterEvents");
  find_if_there(f_->wait_event, "nvmlEventSetWait_v2");
  if (const Result result = f_->init(); result != kSuccess)
    throw base::device_error("no readings of devices: NVML says " + std::string(f_->error_string(result)));
}

Nvml::~Nvml() {
  if (events_ != nullptr) f_->free_events(events_);
  f_->shutdown();
}

bool Nvml::listen(const std::vector<std::string>& pci_bus_ids) {
  if (events_ != nullptr || f_->make_events == nullptr || f_->free_events == nullptr ||
      f_->register_events == nullptr || f_->wait_event == nullptr || f_->make_events(&events_) != kSuccess)
    return false;
  for (const std::string& id : pci_bus_ids) {
    Device device = nullptr;
    if (f_->by_pci_bus_id(id.c_str(), &device) != kSuccess ||
        f_->register_events(device, kXidCriticalError, events_) != kSuccess)
      continue;
    watched_[device] = id;
  }
  return !watched_.empty();
}

std::optional<DeviceXid> Nvml::next_xid(double seconds) const {
  if (watched_.empty()) return std::nullopt;
  EventData event{};
  if (f_->wait_event(events_, &event, static_cast<unsigned>(1000 * seconds)) != kSuccess ||
      event.type != kXidCriticalError)
    return std::nullopt;
  const auto device = watched_.find(event.device);
  // A driver that has lost a device may name none; of one alone that is no question.
  if (device == watched_.end() && watched_.size() > 1)
    return DeviceXid{.pci_bus_id = "", .number = static_cast<int>(event.data)};
  const auto& known = device == watched_.end() ? *watched_.begin() : *device;
  return DeviceXid{.pci_bus_id = known.second, .number = static_cast<int>(event.data)};
}

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
  const Result result = f_->by_pci_bus_id(pci_bus_id.c_str(), &device);
  DeviceReading reading;
  reading.pci_bus_id = pci_bus_id;
  reading.lost = result == kGpuIsLost;
  if (reading.lost) return reading;
  if (result != kSuccess)
    throw base::device_error("no readings of the device at " + pci_bus_id + ": NVML says " +
                             f_->error_string(result));
  reading.name = f_->text(device, f_->name);
  reading.uuid = f_->text(device, f_->uuid);
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
  if (unsigned long long reasons = 0;
      f_->throttle_reasons != nullptr && f_->throttle_reasons(device, &reasons) == kSuccess)
    reading.throttle_reasons = reasons;
  reading.nvlink_errors = f_->nvlink_errors(device);
  return reading;
}

}  // namespace trainerd::kernels
