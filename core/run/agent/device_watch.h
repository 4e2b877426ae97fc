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
  /// `library` is the file name of NVML. `devices` are PCI bus ids.
  DeviceWatch(std::vector<std::string> devices, double every_seconds,
              std::string library = "libnvidia-ml.so.1");
  /// Waits up to 1 s for the thread to end. A thread that hangs in the driver is left behind.
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
  std::shared_ptr<State> state_;  ///< shared with the thread, which may outlive this object
};

}  // namespace trainerd::core::run
