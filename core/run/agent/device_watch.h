#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/nvml/nvml.h"

namespace trainerd::core::run {

/// Reads devices every few seconds, and waits for their XIDs meanwhile, on a thread of its own: a driver that
/// hangs must not stop the thread that watches the workers.
class DeviceWatch {
 public:
  /// `library` is NVML's. Devices are named by PCI bus id.
  DeviceWatch(std::vector<std::string> devices, double every_seconds,
              std::string library = "libnvidia-ml.so.1");
  /// Waits a moment for a reading under way, and no longer.
  ~DeviceWatch();

  /// Readable when there is something to take.
  int event_fd() const;
  struct Taken {
    std::vector<kernels::DeviceReading> readings;  ///< of the devices, in their order; the latest
    std::vector<kernels::DeviceXid> xids;          ///< since the last `take`
    std::string problem;                           ///< why there will be no more readings; given once
  };
  Taken take();

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< the thread's too: it may outlive this
};

}  // namespace trainerd::core::run
