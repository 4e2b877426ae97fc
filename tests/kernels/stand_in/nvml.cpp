// A libnvidia-ml.so.1 of two devices. The second knows neither its power, its energy nor its memory errors,
// and has no NVLinks and no events. Memory in use grows with each reading. A test changes the first by the
// functions at the end, of the library that it has opened itself.

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>

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

constexpr int kTimeout = 10, kGpuIsLost = 15;
std::mutex mutex;
std::condition_variable changed;
std::deque<unsigned long long> xids;  // of the first device
unsigned long long ecc = 2, throttle = 0x4, link_errors = 5;
bool lost = false, registered = false;
struct Event {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

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
  if (std::strcmp(id, devices[0].pci_bus_id) == 0 && lost) return kGpuIsLost;
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
  *errors = type == 1 ? ecc : 77;  // uncorrected; corrected
  return static_cast<Device*>(d)->whole ? kSuccess : kNotSupported;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* d, unsigned long long* reasons) {
  const std::lock_guard lock(mutex);
  *reasons = static_cast<Device*>(d)->whole ? throttle : 0;
  return kSuccess;
}
int nvmlDeviceGetNvLinkState(void* d, unsigned link, unsigned* state) {
  if (!static_cast<Device*>(d)->whole || link >= 4) return kNotSupported;
  return *state = link < 2 ? 1 : 0, kSuccess;
}
int nvmlDeviceGetNvLinkErrorCounter(void*, unsigned link, int counter, unsigned long long* count) {
  const std::lock_guard lock(mutex);
  *count = link == 1 && counter == 0 ? link_errors : link == 1 && counter == 3 ? 1 : 0;
  return kSuccess;
}
int nvmlEventSetCreate(void** set) { return *set = &xids, kSuccess; }
int nvmlEventSetFree(void*) { return kSuccess; }
int nvmlDeviceRegisterEvents(void* d, unsigned long long types, void* set) {
  if (set != &xids || !static_cast<Device*>(d)->whole || types != 0x8) return kNotSupported;
  const std::lock_guard lock(mutex);
  return registered = true, kSuccess;
}
int nvmlEventSetWait_v2(void*, Event* event, unsigned milliseconds) {
  std::unique_lock lock(mutex);
  if (!changed.wait_for(lock, std::chrono::milliseconds(milliseconds),
                        [] { return registered && !xids.empty(); }))
    return kTimeout;
  *event = {&devices[0], 0x8, xids.front(), 0, 0};
  xids.pop_front();
  return kSuccess;
}

// Not of NVML.
void stand_in_xid(unsigned long long number) {
  const std::lock_guard lock(mutex);
  xids.push_back(number);
  changed.notify_all();
}
void stand_in_set(unsigned long long ecc_errors, unsigned long long throttle_reasons,
                  unsigned long long replays, int is_lost) {
  const std::lock_guard lock(mutex);
  ecc = ecc_errors, throttle = throttle_reasons, link_errors = replays, lost = is_lost != 0;
}
}
