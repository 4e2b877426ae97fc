// A libnvidia-ml.so.1 with two devices. The second reports no power, energy or memory errors. Memory in use
// grows with each reading.

#include <cstdio>
#include <cstring>

namespace {

struct Device {
  const char* pci_bus_id;
  const char* name;
  const char* uuid;
  bool whole;
  unsigned long long readings;
};
Device devices[] = {{"0000:65:00.0", "NVIDIA H200", "GPU-65", true, 0},
                    {"0000:CA:00.0", "NVIDIA L40S", "GPU-ca", false, 0}};

constexpr int kSuccess = 0, kUninitialized = 1, kNotSupported = 3, kNotFound = 6;
int started = 0;

int text(const char* from, char* to, unsigned size) {
  return std::snprintf(to, size, "%s", from) > 0 ? kSuccess : kNotFound;
}

}  // namespace

extern "C" {
int nvmlInit_v2() { return ++started, kSuccess; }
int nvmlShutdown() { return --started, kSuccess; }
const char* nvmlErrorString(int result) {
  return result == kNotFound ? "Not Found" : result == kUninitialized ? "Uninitialized" : "?";
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  if (started == 0) return kUninitialized;
  return *count = sizeof(devices) / sizeof(devices[0]), kSuccess;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  if (started == 0) return kUninitialized;
  for (Device& d : devices)
    if (std::strcmp(d.pci_bus_id, id) == 0) return *device = &d, kSuccess;
  return kNotFound;
}
int nvmlDeviceGetName(void* d, char* to, unsigned size) {
  return text(static_cast<Device*>(d)->name, to, size);
}
int nvmlDeviceGetUUID(void* d, char* to, unsigned size) {
  return text(static_cast<Device*>(d)->uuid, to, size);
}
int nvmlDeviceGetMemoryInfo(void* d, unsigned long long* total_free_used) {
  const unsigned long long used = 1000 * ++static_cast<Device*>(d)->readings;
  total_free_used[0] = 150754820096;
  total_free_used[1] = total_free_used[0] - used;
  total_free_used[2] = used;
  return kSuccess;
}
int nvmlDeviceGetPowerUsage(void* d, unsigned* milliwatts) {
  *milliwatts = 612345;
  return static_cast<Device*>(d)->whole ? kSuccess : kNotSupported;
}
int nvmlDeviceGetTotalEnergyConsumption(void* d, unsigned long long* millijoules) {
  *millijoules = 9876543210;
  return static_cast<Device*>(d)->whole ? kSuccess : kNotSupported;
}
int nvmlDeviceGetClockInfo(void*, int type, unsigned* mhz) {
  *mhz = type == 1 ? 1980 : 3201;  // multiprocessors; memory and others
  return kSuccess;
}
int nvmlDeviceGetTemperature(void*, int, unsigned* celsius) { return *celsius = 57, kSuccess; }
int nvmlDeviceGetTotalEccErrors(void* d, int type, int, unsigned long long* errors) {
  *errors = type == 1 ? 2 : 77;  // uncorrected; corrected
  return static_cast<Device*>(d)->whole ? kSuccess : kNotSupported;
}
}
