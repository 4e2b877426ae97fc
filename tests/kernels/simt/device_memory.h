#pragma once

// Memory that stands for a device's: the host reaches it only while an access is open, and faults else, as it
// would where a device's memory is not the host's too.

#include "kernels/memory/memory.h"

namespace trainerd::test::simt {

/// `memory`, of whole pages up to its end, becomes a device's.
kernels::Buffer device_buffer(kernels::Buffer memory);

/// What a kernel, a copy or a library's call has. They nest; one thread at a time.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace trainerd::test::simt
