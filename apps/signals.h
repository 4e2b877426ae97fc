#pragma once

#include <signal.h>

#include <mutex>
#include <string>
#include <thread>

#include "kernels/base/fd.h"

namespace trainerd::apps {

/// While it lives, a signal that ends the process (SIGINT, SIGTERM, SIGHUP) removes a directory first. To be
/// made before any thread.
class RemoveOnSignal {
 public:
  RemoveOnSignal();
  ~RemoveOnSignal();
  RemoveOnSignal(const RemoveOnSignal&) = delete;
  RemoveOnSignal& operator=(const RemoveOnSignal&) = delete;
  void set(const std::string& directory);

 private:
  void watch();

  sigset_t before_{};
  base::UniqueFd signals_, end_;
  std::mutex mutex_;
  std::string directory_;
  std::thread thread_;
};

/// The signals that ask for a stop as a descriptor: blocked here, before any thread is made, so that every
/// thread blocks them. Writing to a reader that has gone, or beyond a file-size limit, is an error from here
/// on, and ends nothing.
base::UniqueFd open_stop_signals();

}  // namespace trainerd::apps
