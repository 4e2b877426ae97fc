#pragma once

#include <functional>
#include <thread>

#include "core/run/stop/stop.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// Waits for a stop signal on its own thread while the main thread computes or waits for a disk. Before
/// training there is nothing to save, so the process ends at once.
class EarlyStop {
 public:
  /// `leave` gets the request of the first signal read from `signal_fd` and must end the process.
  EarlyStop(int signal_fd, LeaveProcess leave);
  /// Later signals stay in `signal_fd`.
  ~EarlyStop();
  EarlyStop(const EarlyStop&) = delete;
  EarlyStop& operator=(const EarlyStop&) = delete;

 private:
  base::UniqueFd over_;
  std::thread thread_;
};

/// Reads a signal from a signalfd; 0: there is none.
int read_signal(int signal_fd);

}  // namespace trainerd::core::run
