#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/nvml/nvml.h"

namespace trainerd::core::run {

/// Reads device states every few seconds on its own thread: a driver that hangs must not block the thread
/// that supervises the workers.
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
    std::vector<kernels::DeviceReading> readings;  ///< the latest, in the order of `devices`
    std::string problem;                           ///< why readings have stopped; reported once
  };
  Taken take();

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with the thread, which may outlive this object
};

}  // namespace trainerd::core::run
