#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend/backend.h"

namespace trainerd::kernels {

/// What the CUDA plugin (libtrainerd_cuda.so) offers: the CUDA world as a table of functions, so that the
/// executable itself links no CUDA library and starts where there is none.
struct CudaPlugin {
  /// Hash of the headers that both sides share: a plugin built from others is refused.
  const char* interface_hash = "";
  /// Devices this process may use. Throws DeviceError with the driver's words when there is no driver or no
  /// device.
  int (*device_count)() = nullptr;
  Target (*describe)(int device) = nullptr;
  std::int64_t (*memory_bytes)(int device) = nullptr;
  std::unique_ptr<Backend> (*make_backend)(int device) = nullptr;
};

/// Opens the plugin beside the running executable or in ../lib of it. It stays loaded until the process ends.
/// Throws DeviceError, in one line with what to do, when this build has none or it cannot be loaded.
CudaPlugin open_cuda_plugin();

/// Another table that the plugin shows, for a folder of its own: opened as above.
void* cuda_plugin_symbol(const char* name);

/// Why no CUDA device can be used here, in one line with what to do; empty when one can.
std::string why_no_cuda();

}  // namespace trainerd::kernels
