#pragma once

#include <functional>
#include <thread>

#include "core/run/stop/stop.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// Waits for a stop signal on a thread of its own while the main thread computes or waits for a disk: before
/// training there is nothing to save, and the process ends at once.
class EarlyStop {
 public:
  /// `leave` gets the request of the first signal that `signal_fd` holds, and is expected to end the process.
  EarlyStop(int signal_fd, LeaveProcess leave);
  /// Signals from here on are left in `signal_fd`.
  ~EarlyStop();
  EarlyStop(const EarlyStop&) = delete;
  EarlyStop& operator=(const EarlyStop&) = delete;

 private:
  base::UniqueFd over_;
  std::thread thread_;
};

/// The signal that a signalfd holds; 0: none.
int read_signal(int signal_fd);

}  // namespace trainerd::core::run
