#pragma once

// Simulated device memory: host code faults on it unless an access is open, as with real device memory that
// the host cannot read.

#include "kernels/memory/memory.h"

namespace trainerd::test::simt {

/// Turns `memory`, which ends at a page boundary, into device memory.
kernels::Buffer device_buffer(kernels::Buffer memory);

/// Grants access while a kernel, a copy or a library call runs. Accesses nest; one thread at a time.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace trainerd::test::simt
