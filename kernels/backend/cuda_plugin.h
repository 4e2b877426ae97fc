#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend/backend.h"

namespace trainerd::kernels {

/// Entry points of the CUDA plugin (libtrainerd_cuda.so) as a table of functions. The executable links no
/// CUDA library, so it starts on machines without one.
struct CudaPlugin {
  /// Hash of the headers that both sides share. A plugin with another hash is refused.
  const char* interface_hash = "";
  /// Number of devices this process may use. Throws DeviceError with the driver's message if there is no
  /// driver or no device.
  int (*device_count)() = nullptr;
  Target (*describe)(int device) = nullptr;
  std::int64_t (*memory_bytes)(int device) = nullptr;
  std::unique_ptr<Backend> (*make_backend)(int device) = nullptr;
};

/// Loads the plugin from the executable's directory or from ../lib. It stays loaded until the process ends.
/// Throws DeviceError, one line with the remedy, if this build has none or it cannot be loaded.
CudaPlugin open_cuda_plugin();

/// Another function table in the plugin, for the folder that defines it. Loaded as above.
void* cuda_plugin_symbol(const char* name);

/// Why no CUDA device can be used, in one line with the remedy; empty if one can.
std::string why_no_cuda();

}  // namespace trainerd::kernels
