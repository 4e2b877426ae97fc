// A stand-in for the driver's library (libcuda.so.1) without devices: enough for cuDNN to make plans from a
// device description. Code can be "loaded" and looked up; all other calls return the error of a stub, and
// nothing computes.

#include <cstddef>
#include <cstring>

namespace {

constexpr int kSuccess = 0, kStubLibrary = 34;
alignas(64) char something[4096];  // target of all handles

int not_here() { return kStubLibrary; }
int driver_version(int* version) {
  *version = 13000;
  return kSuccess;
}
// Returns the same handle for any object.
int any_handle(void** handle, const void*) {
  *handle = something;
  return kSuccess;
}
int error_words(int, const char** words) {
  *words = "stand-in driver";
  return kSuccess;
}

template <class F>
void* address(F* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

extern "C" int cuGetProcAddress_v2(const char* name, void** function, int, unsigned long, int* status) {
  struct Entry {
    const char* name;
    void* function;
  };
  static const Entry kEntries[] = {
      {"cuDriverGetVersion", address(driver_version)}, {"cuLibraryLoadData", address(any_handle)},
      {"cuLibraryGetKernel", address(any_handle)},     {"cuLibraryGetModule", address(any_handle)},
      {"cuModuleLoadData", address(any_handle)},       {"cuModuleGetFunction", address(any_handle)},
      {"cuKernelGetFunction", address(any_handle)},    {"cuGetErrorString", address(error_words)},
      {"cuGetErrorName", address(error_words)},        {"cuGetProcAddress", address(cuGetProcAddress_v2)},
  };
  *function = address(not_here);
  for (const Entry& entry : kEntries)
    if (std::strcmp(name, entry.name) == 0) *function = entry.function;
  if (status != nullptr) *status = 0;
  return kSuccess;
}

// Functions that cuDNN looks up by name.
extern "C" {

int cuGetProcAddress(const char* name, void** function, int version, unsigned long flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}
int cuDriverGetVersion(int* version) { return driver_version(version); }
int cuInit(unsigned) { return kStubLibrary; }
int cuLibraryLoadData(void** library, const void* code) { return any_handle(library, code); }
int cuLibraryLoadFromFile() { return kStubLibrary; }
int cuLibraryGetKernel(void** kernel, const void* library) { return any_handle(kernel, library); }
int cuLibraryUnload() { return kSuccess; }
int cuKernelSetAttribute() { return kStubLibrary; }
int cuKernelGetAttribute() { return kStubLibrary; }
int cuOccupancyMaxPotentialClusterSize() { return kStubLibrary; }
int cuLaunchKernel() { return kStubLibrary; }
int cuLaunchCooperativeKernel() { return kStubLibrary; }
int cuLaunchKernelEx() { return kStubLibrary; }
int cuCtxGetCurrent() { return kStubLibrary; }
int cuCtxGetLimit() { return kStubLibrary; }
int cuCtxPopCurrent_v2() { return kStubLibrary; }
int cuCtxPopCurrent() { return kStubLibrary; }
int cuCtxPushCurrent_v2() { return kStubLibrary; }
int cuCtxPushCurrent() { return kStubLibrary; }
int cuDeviceGet() { return kStubLibrary; }
int cuDeviceGetCount() { return kStubLibrary; }
int cuLinkAddData() { return kStubLibrary; }
int cuLinkAddData_v2() { return kStubLibrary; }
int cuLinkComplete() { return kStubLibrary; }
int cuLinkCreate() { return kStubLibrary; }
int cuLinkCreate_v2() { return kStubLibrary; }
int cuLinkDestroy() { return kStubLibrary; }
int cuStreamGetCtx() { return kStubLibrary; }
int cuGetErrorString(int error, const char** words) { return error_words(error, words); }
int cuGetErrorName(int error, const char** words) { return error_words(error, words); }

}  // extern "C"
